"""The collectives of MXNet's arrays, under the names of the interface.

Common arguments:
    tensor: a dense mx.nd.NDArray on the CPU; bool, uint8, int8, int32, int64, float16, float32 or
        float64; the same dtype on all ranks.
    name: what the ranks agree on; without one, all ranks must call in the same order.
    priority: what has more goes first, in MXNet's engine and on the way.
    process_set: the ranks that take part.

Common errors:
    UsageError (a ValueError): the arguments are wrong; only this rank sees it.
    FailedOperationError (an MXNetError and a HorovodInternalError): the ranks disagree, a rank was
        lost, or Horovod was shut down. allreduce and broadcast return at once: theirs is raised by
        each wait for what depends on the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mxnet as mx

from horovod._train.call_site import call_site
from horovod._train.logged.call import catch_up_after_join, flush_before_join
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.reduce_op import Average, requested_reduction
from horovod.errors import UsageError
from horovod.mxnet import calls
from horovod.mxnet.calls import call_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]


def allreduce(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> mx.nd.NDArray:
    """Reduces an array over all ranks; returns at once, MXNet computes the result later.

    Args:
        tensor: any shape, the same on all ranks; left untouched.
        average: deprecated; True for Average, False for Sum.
        name: what the ranks agree on.
        priority: what has more goes first.
        prescale_factor: multiplied to the input.
        postscale_factor: multiplied to the result.
        process_set: the ranks that take part.
        op: Average (the default), Sum, Min, Max, Product or Adasum.

    Returns:
        An array of the shape and dtype of ``tensor``, without gradient.

    Raises:
        UsageError: the arguments are wrong.
        FailedOperationError: the job is over; everything else at a wait for the result.

    Example:
        >>> hvd.allreduce(mx.nd.ones(3), op=hvd.Sum)   # with 4 ranks
        [4. 4. 4.]
    """
    reduction = requested_reduction(op, average, prescale_factor, postscale_factor)
    call = call_of("allreduce", process_set, name, priority)
    return calls.allreduce(call, (tensor,), reduction)[0]


def allreduce_(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> mx.nd.NDArray:
    """Run :func:`allreduce` in place: MXNet overwrites ``tensor`` later, which is returned."""
    reduction = requested_reduction(op, average, prescale_factor, postscale_factor)
    calls.allreduce_(call_of("allreduce", process_set, name, priority), (tensor,), reduction)
    return tensor


def grouped_allreduce(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[mx.nd.NDArray]:
    """Reduces several arrays as one operation: they become ready, and fail, together.

    Args:
        tensors: shapes and dtypes may differ from each other, not between ranks; an empty sequence
            is returned as it is.

    The rest is as in :func:`allreduce`.
    """
    if not tensors:
        return tensors  # type: ignore[return-value]
    reduction = requested_reduction(op, average, prescale_factor, postscale_factor)
    call = call_of("grouped_allreduce", process_set, name, priority)
    return calls.allreduce(call, tensors, reduction)


def grouped_allreduce_(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Sequence[mx.nd.NDArray]:
    """Run :func:`grouped_allreduce` in place: MXNet overwrites the arrays, which are returned."""
    if not tensors:
        return tensors
    reduction = requested_reduction(op, average, prescale_factor, postscale_factor)
    call = call_of("grouped_allreduce", process_set, name, priority)
    calls.allreduce_(call, tensors, reduction)
    return tensors


def allgather(
    tensor: mx.nd.NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Joins the arrays of all ranks along dimension 0, in rank order; waits.

    Args:
        tensor: at least one dimension. The first may differ between ranks, the others must be the
            same.
        name: what the ranks agree on.
        priority: what has more goes first.
        process_set: the ranks that take part.

    Returns:
        An array with the rows of all ranks.

    Raises:
        UsageError: the arguments are wrong.
        FailedOperationError: the operation failed.
    """
    return calls.allgather(call_of("allgather", process_set, name, priority), (tensor,))[0]


def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """Runs :func:`allgather` on several arrays as one operation.

    Args:
        tensors: shapes and dtypes may differ from each other; an empty sequence is returned as it
            is.
    """
    if not tensors:
        return tensors  # type: ignore[return-value]
    return calls.allgather(call_of("grouped_allgather", process_set, name, priority), tensors)


def broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """The root's array on every rank; returns at once, MXNet fills the result later.

    Args:
        tensor: any shape and dtype, the same on all ranks; left untouched.
        root_rank: the global rank whose values count.
        name: what the ranks agree on.
        priority: what has more goes first.
        process_set: the ranks that take part.

    Returns:
        A new array, also on the root.

    Raises:
        UsageError: the arguments are wrong; ``root_rank`` is not in the process set.
        FailedOperationError: the job is over; everything else at a wait for the result.
    """
    call = call_of("broadcast", process_set, name, priority)
    return calls.broadcast(call, tensor, root_rank)


def broadcast_(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Run :func:`broadcast` in place: MXNet overwrites ``tensor`` later, which is returned."""
    calls.broadcast_(call_of("broadcast", process_set, name, priority), tensor, root_rank)
    return tensor


def alltoall(
    tensor: mx.nd.NDArray,
    splits: Sequence[int] | mx.nd.NDArray | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray | tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """Sends consecutive rows to each rank and returns those received; waits.

    Args:
        tensor: at least one dimension; all but the first agree between ranks.
        splits: how many rows go to each rank, as integers or an int32 array of one dimension;
            their sum is at most dimension 0. None divides equally.
        name: what the ranks agree on.
        priority: what has more goes first.
        process_set: the ranks that take part.

    Returns:
        The rows received, in rank order; with ``splits``, also how many came from each rank (int32,
        shape (size,)).

    Raises:
        UsageError: the arguments are wrong.
        FailedOperationError: the operation failed.
    """
    call = call_of("alltoall", process_set, name, priority)
    output, received = calls.alltoall(call, tensor, _splits_of(splits))
    return output if splits is None else (output, received)


def reducescatter(
    tensor: mx.nd.NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> mx.nd.NDArray:
    """Reduces an array over all ranks and leaves each of them its own rows; waits.

    Args:
        tensor: at least one dimension; the same shape and dtype on all ranks; left untouched. Of d
            rows, each of n ranks gets d // n, and the first d % n ranks get one more.
        op: Average or Sum.
        name: what the ranks agree on.
        priority: what has more goes first.
        process_set: the ranks that take part.
        prescale_factor: multiplied to the input.
        postscale_factor: multiplied to the result.

    Raises:
        UsageError: the arguments are wrong.
        FailedOperationError: the operation failed.
    """
    reduction = requested_reduction(op, None, prescale_factor, postscale_factor)
    call = call_of("reducescatter", process_set, name, priority)
    return calls.reducescatter(call, (tensor,), reduction)[0]


def grouped_reducescatter(
    tensors: Sequence[mx.nd.NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[mx.nd.NDArray]:
    """Runs :func:`reducescatter` on several arrays as one operation.

    Args:
        tensors: shapes and dtypes may differ from each other; an empty sequence is returned as it
            is.
    """
    if not tensors:
        return tensors  # type: ignore[return-value]
    reduction = requested_reduction(op, None, prescale_factor, postscale_factor)
    call = call_of("grouped_reducescatter", process_set, name, priority)
    return calls.reducescatter(call, tensors, reduction)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks of the set have called it; operations in flight go on undisturbed.

    Raises:
        HorovodInternalError: a rank was lost, or Horovod was shut down.
    """
    group_of(process_set).barrier(call_site=call_site()).wait()


def join(process_set: ProcessSet = global_process_set) -> int:
    """Says that this rank has no more data; waits until all ranks of the set have said so.

    Until then it takes part in every allreduce with what does not change the result. It first waits
    for this rank's own operations.

    Returns:
        The global rank that joined last, the same on all ranks.

    Raises:
        HorovodInternalError: a rank was lost, or Horovod was shut down.
    """
    flush_before_join()
    last_joined = calls.join(group_of(process_set))
    if process_set is global_process_set:
        catch_up_after_join(last_joined)
    return last_joined


def _splits_of(splits: Any) -> Sequence[int] | None:
    """The number of rows for each rank, from what a caller may give.

    Raises:
        UsageError: it is neither integers nor an int32 array of one dimension.
    """
    if splits is None:
        return None
    if isinstance(splits, mx.nd.NDArray):
        if str(splits.asnumpy().dtype) != "int32" or len(splits.shape) != 1:
            raise UsageError(
                f"splits is an array of shape {splits.shape}; give a list of integers or a "
                "one-dimensional int32 array"
            )
        return tuple(splits.asnumpy().tolist())
    try:
        return tuple(int(rows) for rows in splits)
    except (TypeError, ValueError):
        raise UsageError(f"splits={splits!r} is not a sequence of integers") from None
