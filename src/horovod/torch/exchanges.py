"""allgather, broadcast and alltoall in all their forms.

Common arguments:
    tensor: dense, contiguous, on the CPU or a GPU, of the same kind on all ranks; bool, an integer
        type, float16, bfloat16, float32, float64, complex64 or complex128; the same dtype on all
        ranks.
    name: what the ranks agree on; without one, all ranks must call in the same order.
    process_set: the ranks that take part.

Common errors:
    UsageError (a ValueError): the arguments are wrong; only this rank sees it.
    HorovodInternalError: the ranks disagree, a rank was lost, or Horovod was shut down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from horovod._train.call_site import call_site
from horovod._train.logged.call import catch_up_after_join, flush_before_join
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod.torch import autograd, handles
from horovod.torch.calls import AllgatherCall, AlltoallCall, BroadcastCall, splits_of
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.devices import current_index, wait

if TYPE_CHECKING:
    from collections.abc import Sequence


@outside_of_graphs
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Joins the tensors of all ranks along dimension 0, in rank order.

    Args:
        tensor: at least one dimension. The first may differ between ranks and may be 0, the others
            must be the same.
        name: what the ranks agree on.
        process_set: the ranks that take part.

    Returns:
        A tensor with the rows of all ranks. Its gradient is averaged over the ranks, and each gets
        that of its own rows.

    Raises:
        UsageError: the arguments are wrong.
        HorovodInternalError: the operation failed.
    """
    call = AllgatherCall(group_of(process_set), name, "allgather", call_site())
    return autograd.allgather(call, (tensor,))[0]


@outside_of_graphs
def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts :func:`allgather`; :func:`synchronize` returns the result, without gradient."""
    call = AllgatherCall(group_of(process_set), name, "allgather", call_site())
    return handles.add(call.group, call.submit((tensor,)), lambda handle: call.take(handle)[0])


@outside_of_graphs
def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Runs :func:`allgather` on several tensors as one operation.

    Args:
        tensors: at least one; shapes and dtypes may differ from each other.
    """
    call = AllgatherCall(group_of(process_set), name, "grouped_allgather", call_site())
    return list(autograd.allgather(call, tuple(tensors)))


@outside_of_graphs
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts :func:`grouped_allgather`; :func:`synchronize` returns a tuple of tensors."""
    call = AllgatherCall(group_of(process_set), name, "grouped_allgather", call_site())
    return handles.add(call.group, call.submit(tuple(tensors)), call.take)


@outside_of_graphs
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the root's tensor on every rank.

    Args:
        tensor: any shape and dtype, the same on all ranks; left untouched.
        root_rank: the global rank whose values count.
        name: what the ranks agree on.
        process_set: the ranks that take part.

    Returns:
        A new tensor, also on the root. Its gradient is averaged on the root and zero elsewhere.

    Raises:
        UsageError: the arguments are wrong; ``root_rank`` is not in the process set.
        HorovodInternalError: the operation failed.
    """
    call = BroadcastCall(group_of(process_set), name, "broadcast", call_site(), root_rank)
    return autograd.broadcast(call, tensor)


@outside_of_graphs
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts :func:`broadcast`; :func:`synchronize` returns the new tensor, without gradient."""
    call = BroadcastCall(group_of(process_set), name, "broadcast", call_site(), root_rank)
    output = torch.empty_like(tensor)
    return handles.add(call.group, call.submit(tensor, output), lambda _: output, (output,))


@outside_of_graphs
def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrites a tensor with that of the root and returns it; autograd does not follow."""
    call = BroadcastCall(group_of(process_set), name, "broadcast", call_site(), root_rank)
    wait(call.submit(tensor, tensor, waits_next=True), tensor)
    return tensor


@outside_of_graphs
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts :func:`broadcast_`; :func:`synchronize` returns the same tensor object."""
    call = BroadcastCall(group_of(process_set), name, "broadcast", call_site(), root_rank)
    return handles.add_written(call.group, call.submit(tensor, tensor), tensor)


@outside_of_graphs
def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends consecutive rows to each rank and returns those received.

    Args:
        tensor: at least one dimension; all but the first agree between ranks.
        splits: how many rows go to each rank, as integers or an int32 or int64 tensor of one
            dimension; their sum is at most dimension 0, rows beyond it are not sent. None divides
            equally.
        name: what the ranks agree on.
        process_set: the ranks that take part.

    Returns:
        The rows received, in rank order; with ``splits``, also how many came from each rank (shape
        (size,), int32, or int64 if a number does not fit). The gradient of each row goes back to
        where the row came from.

    Raises:
        UsageError: the arguments are wrong.
        HorovodInternalError: the operation failed.
    """
    call = _alltoall_call(splits, name, process_set)
    output, received = autograd.alltoall(call, tensor)
    return output if splits is None else (output, received)


@outside_of_graphs
def alltoall_async(
    tensor: torch.Tensor,
    splits: Sequence[int] | torch.Tensor | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts :func:`alltoall`; :func:`synchronize` returns ``(output, received_splits)`` always."""
    call = _alltoall_call(splits, name, process_set)
    return handles.add(call.group, call.submit(tensor), call.take)


@outside_of_graphs
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks of the set have called it; operations in flight go on undisturbed.

    Raises:
        HorovodInternalError: a rank was lost, or Horovod was shut down.
    """
    group_of(process_set).barrier(call_site=call_site()).wait()


@outside_of_graphs
def join(
    device: int = -1,
    process_set: ProcessSet = global_process_set,
    *,
    divide_by_initial_world_size: bool = True,
) -> int:
    """Says that this rank has no more data; waits until all ranks of the set have said so.

    Until then it takes part in every allreduce with what does not change the result, so that ranks
    with different numbers of batches can train to the end. Synchronize all asynchronous operations
    before.

    Args:
        device: index of the GPU with which this rank goes on to take part, where the others reduce
            tensors on GPUs; -1 for the current one. A GPU that is not there is passed over.
        process_set: the ranks that take part.
        divide_by_initial_world_size: whether averages go on being divided by the size of the set,
            or by the number of ranks that still have data.

    Returns:
        The global rank that joined last, the same on all ranks: it has seen the most data.

    Raises:
        HorovodInternalError: a rank was lost, or Horovod was shut down.

    Example:
        >>> for batch in my_batches:   # of different number on each rank
        ...     train(batch)
        >>> hvd.join()
    """
    flush_before_join()
    handle = group_of(process_set).join(
        device=current_index() if device < 0 else device,
        divide_by_initial_world_size=divide_by_initial_world_size,
        call_site=call_site(),
    )
    handle.wait()
    last_joined = handle.last_joined()
    if process_set is global_process_set:
        catch_up_after_join(last_joined)
    return last_joined


def _alltoall_call(
    splits: Sequence[int] | torch.Tensor | None, name: str | None, process_set: ProcessSet
) -> AlltoallCall:
    group = group_of(process_set)
    like = splits if isinstance(splits, torch.Tensor) else None
    return AlltoallCall(group, name, "alltoall", call_site(), splits_of(splits), like)
