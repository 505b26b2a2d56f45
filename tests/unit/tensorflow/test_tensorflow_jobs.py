"""Operations find the engine of their job by its number, so several live in one process."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod import _native
from horovod.tensorflow import native_ops
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

JOBS = (1007, 1008)  # the ranks of one world, each as a job of this process


@pytest.fixture
def jobs() -> Iterator[None]:
    engines = _native.make_world(len(JOBS))
    ranks = (ctypes.c_int * len(JOBS))(*range(len(JOBS)))
    library = native_ops._library
    for rank, (job, engine) in enumerate(zip(JOBS, engines, strict=True)):
        library.horovod_kernels_begin_job(
            job, _native.c_interface(), engine.c_reference(), rank, rank, len(JOBS)
        )
        library.horovod_kernels_set_process_set(job, 0, 0, ranks, len(JOBS), rank)
    yield
    for job in JOBS:
        library.horovod_kernels_end_job(job)
    for engine in engines:
        engine.close()


def test_each_job_has_its_own_rank_and_engine(jobs: None) -> None:
    @tf.function
    def step(value: tf.Tensor, job: int) -> tuple[tf.Tensor, tf.Tensor]:
        total = native_ops.ops.horovod_allreduce(value, reduce_op=1, job=job, name="total")
        return total, native_ops.ops.horovod_rank(job=job)

    with ThreadPoolExecutor(len(JOBS)) as ranks:
        results = list(ranks.map(lambda job: step(tf.constant([float(job)]), job), JOBS))
    assert [total.numpy().tolist() for total, _ in results] == [[2015.0], [2015.0]]
    assert [int(rank) for _, rank in results] == [0, 1]


def test_a_job_that_has_ended_is_named() -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match="job 1007 of this process"):
        native_ops.ops.horovod_rank(job=1007)


def _train() -> tuple[list[object], ...]:
    """What operations say on this rank: eagerly, in a graph, and of gradients."""
    hvd.init()
    both = hvd.add_process_set([0])

    @tf.function
    def step(value: tf.Tensor) -> tuple[tf.Tensor, ...]:
        total = hvd.allreduce(value, op=hvd.Sum, name="total")
        return total, hvd.rank_op(), hvd.size_op(), hvd.process_set_included_op(both.process_set_id)

    value = tf.Variable([1.0 + hvd.rank()])
    with tf.GradientTape() as tape:
        gathered = tf.reduce_sum(hvd.allgather(value, name="rows") * [[2.0], [3.0]][hvd.rank()])
    return (
        hvd.allreduce(value, op=hvd.Sum, name="eager").numpy().tolist(),
        [each.numpy().tolist() for each in step(tf.convert_to_tensor(value))],
        tape.gradient(gathered, value).numpy().tolist(),
    )


def test_operations_work_for_the_job_of_their_thread() -> None:
    """Two ranks of a job, and the rank of another one, run operations in one process."""
    hvd.init()
    try:
        assert run_ranks(2, _train) == [
            ([3.0], [[3.0], 0, 2, 1], [2.5]),
            ([3.0], [[3.0], 1, 2, 0], [2.5]),
        ]
        assert (int(hvd.rank_op()), int(hvd.size_op())) == (0, 1)
        assert hvd.allreduce(tf.constant([4.0]), op=hvd.Sum).numpy().tolist() == [4.0]
    finally:
        hvd.shutdown()


def test_the_only_job_is_that_of_a_graph_which_was_built_before() -> None:
    @tf.function
    def number_of_ranks() -> tf.Tensor:
        return native_ops.ops.horovod_size()

    def ask() -> int:
        hvd.init()
        return int(number_of_ranks())

    with pytest.raises(tf.errors.FailedPreconditionError):
        number_of_ranks()
    assert run_ranks(1, ask) == [1]
    with pytest.raises(tf.errors.FailedPreconditionError):
        number_of_ranks()
