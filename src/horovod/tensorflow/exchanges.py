"""allgather, broadcast, alltoall, join and barrier, as :mod:`horovod.tensorflow.reductions`."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from horovod._train.logged.call import catch_up_after_join, flush_before_join
from horovod._train.process_set import ProcessSet, global_process_set
from horovod.errors import UsageError
from horovod.tensorflow import calls, gradients
from horovod.tensorflow.calls import call_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.tensorflow.interface_types import TensorLike, Variable

assert gradients  # registers them


def allgather(
    tensor: TensorLike,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Joins the tensors of all ranks along dimension 0, in rank order.

    Args:
        tensor: at least one dimension. The first may differ between ranks and may be 0, the others
            must be the same.
        name: what the ranks agree on.
        ignore_name_scope: whether only the last part of the node's name counts.
        process_set: the ranks that take part.

    Returns:
        A tensor with the rows of all ranks. Its gradient is averaged over the ranks, and each gets
        that of its own rows.
    """
    call = call_of(process_set, name, ignore_name_scope)
    return calls.allgather(call, tf.convert_to_tensor(tensor))


def grouped_allgather(
    tensors: Sequence[TensorLike],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Sequence[Any]:
    """Runs :func:`allgather` on several tensors as one operation.

    Args:
        tensors: shapes and dtypes may differ from each other. An empty list is returned as it is.
    """
    if not tensors:
        return tensors
    call = call_of(process_set, name, ignore_name_scope)
    return calls.grouped_allgather(call, [tf.convert_to_tensor(tensor) for tensor in tensors])


def broadcast(
    tensor: TensorLike,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's tensor on every rank.

    Args:
        tensor: any shape and dtype, the same on all ranks.
        root_rank: the global rank whose values count.
        name: what the ranks agree on.
        ignore_name_scope: whether only the last part of the node's name counts.
        process_set: the ranks that take part.

    Returns:
        A new tensor. Its gradient is averaged on the root and zero elsewhere.
    """
    call = call_of(process_set, name, ignore_name_scope)
    return calls.broadcast(call, tf.convert_to_tensor(tensor), root_rank)


def broadcast_(
    variables: Sequence[Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrites variables with those of the root, as one operation.

    Args:
        variables: of any shapes and dtypes, the same on all ranks; resource variables, or reference
            variables of a graph.
        root_rank: the global rank whose values count.
        name: what the ranks agree on.
        process_set: the ranks that take part.

    Returns:
        The values after the assignment. In a graph, running them is what assigns.

    Raises:
        UsageError: some are resource variables and some reference variables.
    """
    if not variables:
        return []
    if len({_is_reference(variable) for variable in variables}) > 1:
        raise UsageError(
            "broadcast_() of resource variables and reference variables together: call it once for "
            "each kind"
        )
    call = call_of(process_set, name)
    values = [tf.convert_to_tensor(variable) for variable in variables]
    received = calls.grouped_broadcast(call, values, root_rank)
    return [_assigned(variable, value) for variable, value in zip(variables, received, strict=True)]


def _is_reference(variable: Any) -> bool:
    return bool(getattr(getattr(variable, "dtype", None), "_is_ref_dtype", False))


def _assigned(variable: Any, value: Any) -> Any:
    assigned = variable.assign(value)
    return tf.convert_to_tensor(variable if assigned is None else assigned)


def alltoall(
    tensor: TensorLike,
    splits: TensorLike | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends consecutive rows to each rank and returns those received.

    Args:
        tensor: at least one dimension; all but the first agree between ranks.
        splits: how many rows go to each rank, anything that becomes int32 of one dimension; their
            sum is at most dimension 0, rows beyond it are not sent. None divides equally.
        name: what the ranks agree on.
        ignore_name_scope: whether only the last part of the node's name counts.
        process_set: the ranks that take part.

    Returns:
        The rows received, in rank order; with ``splits``, also how many came from each rank (int32,
        shape (size,)). The gradient of each row goes back to where the row came from.
    """
    call = call_of(process_set, name, ignore_name_scope)
    rows = None if splits is None else _splits_of(splits)
    output, received = calls.alltoall(call, tf.convert_to_tensor(tensor), rows)
    return output if splits is None else (output, received)


def _splits_of(splits: Any) -> Any:
    """Return row counts as an int32 tensor, into which TensorFlow would squeeze larger ones."""
    if isinstance(splits, list | tuple | np.ndarray):
        too_many = [rows for rows in splits if isinstance(rows, Integral) and rows > tf.int32.max]
        if too_many:
            raise UsageError(
                f"splits={list(splits)} sends {too_many[0]} rows to one rank, but counts are "
                "int32 in TensorFlow: send fewer rows at once"
            )
    return tf.convert_to_tensor(splits, tf.int32)


def join(process_set: ProcessSet = global_process_set) -> Any:
    """Says that this rank has no more data; ends when all ranks of the set have said so.

    Until then it takes part in every allreduce with what does not change the result. In a graph,
    make sure with control dependencies that the rank's other operations come first.

    Args:
        process_set: the ranks that take part.

    Returns:
        The global rank that joined last, int32; the same on all ranks.
    """
    call = call_of(process_set, None)
    if not tf.executing_eagerly():
        return calls.join(call)
    flush_before_join()
    last_joined = calls.join(call)
    if process_set is global_process_set:
        catch_up_after_join(int(last_joined))
    return last_joined


def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Ends when all ranks of the set have reached it; in a graph, an operation that does."""
    return calls.barrier(call_of(process_set, None))
