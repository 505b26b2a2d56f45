"""Numbers of the job as operations: graphs read them when they run, not when they are built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from horovod._rank import context
from horovod._train.process_set import number_of
from horovod.tensorflow.native_ops import ops

if TYPE_CHECKING:
    from horovod._train.process_set import ProcessSet


def size_op(
    process_set_id: int = 0, name: str | None = None, *, job: int | None = None
) -> tf.Tensor:
    """The number of ranks in a process set, int32.

    Args:
        process_set_id: the number of the set.
        name: of the operation.
        job: the number of its context in this process; None for the current one.

    Raises:
        tf.errors.InvalidArgumentError: when it runs and there is no such set.
        tf.errors.FailedPreconditionError: when it runs and Horovod is not initialized.
    """
    return ops.horovod_size(job=_number(job), process_set_id=process_set_id, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Whether this rank belongs to a process set: 1 or 0, int32.

    -1 if Horovod is not initialized, -3 if there is no such set.
    """
    return ops.horovod_process_set_included(job=_number(), process_set_id=process_set_id, name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """The number of ranks on this host, int32; FailedPreconditionError without a job."""
    return ops.horovod_local_size(job=_number(), name=name)


def rank_op(name: str | None = None, *, job: int | None = None) -> tf.Tensor:
    """This process among all processes of the job, int32; FailedPreconditionError without one."""
    return ops.horovod_rank(job=_number(job), name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process among those of its host, int32; FailedPreconditionError without a job."""
    return ops.horovod_local_rank(job=_number(), name=name)


def set_rank_op(process_set_id: int, job: int) -> tf.Tensor:
    """This process's place in a process set, int32; InvalidArgumentError if it is not in it."""
    return ops.horovod_rank(job=job, process_set_id=process_set_id)


def _number(job: int | None = None) -> int:
    return context.current().number if job is None else job


def is_member_op(process_set: ProcessSet) -> tf.Tensor:
    """Whether this rank belongs to a process set, bool; UsageError if it is not registered."""
    return tf.equal(process_set_included_op(number_of(process_set)), 1)


def num_members_op(process_set: ProcessSet) -> tf.Tensor:
    """The number of ranks with which this one shares values, int32: 1 outside of the set."""
    size = size_op(number_of(process_set))
    return tf.where(is_member_op(process_set), size, tf.ones_like(size))


for _name in ("Size", "ProcessSetIncluded", "LocalSize", "Rank", "LocalRank"):
    tf.no_gradient(f"Horovod{_name}")
