"""The integers that asynchronous operations return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._train.handles import HandleTable
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.devices import wait
from horovod.torch.sparse import SparseInFlight

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from horovod._native import Handle
    from horovod._rank.group import Group
    from horovod.torch.calls import ReducingCall

_table = HandleTable()


def add(
    group: Group,
    handle: Handle,
    finish: Callable[[Handle], Any],
    outputs: Sequence[torch.Tensor] = (),
) -> int:
    """Keeps an operation until it is synchronized.

    Args:
        group: where it runs.
        handle: the operation.
        finish: makes the result of the ended operation; holds the tensors alive until then.
        outputs: tensors of the caller into which the operation writes, on one device.
    """

    def result(handle: Handle, outputs: Sequence[torch.Tensor]) -> Any:
        if outputs:
            wait(handle, outputs[0])
        else:
            handle.wait()
        return finish(handle)

    return _table.add(group, handle, result, outputs)


def add_written(group: Group, handle: Handle, tensor: torch.Tensor) -> int:
    """Keeps an operation that writes into a tensor of the caller, which is its result."""
    return _table.add(group, handle, _written, tensor)


def _written(handle: Handle, tensor: torch.Tensor) -> torch.Tensor:
    wait(handle, tensor)
    return tensor


def start(
    call: ReducingCall,
    tensors: tuple[torch.Tensor, ...],
    take: Callable[[tuple[torch.Tensor, ...]], Any] = tuple,
) -> int:
    """Starts a reduction into new tensors.

    Args:
        call: what to do.
        tensors: of this rank.
        take: makes the result of the reduced tensors.
    """
    outputs = call.outputs(tensors)
    return add(call.group, call.submit(tensors, outputs), lambda _: take(outputs), outputs)


@outside_of_graphs
def poll(handle: int | SparseInFlight) -> bool:
    """Whether an asynchronous operation ended, also with an error; never blocks.

    Args:
        handle: what an ``*_async`` function returned.

    Raises:
        UsageError: the handle is unknown, or was synchronized already.
    """
    return handle.done() if isinstance(handle, SparseInFlight) else _table.poll(handle)


@outside_of_graphs
def synchronize(handle: int | SparseInFlight) -> Any:
    """Waits for an asynchronous operation and returns its result.

    Args:
        handle: what an ``*_async`` function returned.

    Returns:
        A tensor; a tuple of tensors for a grouped operation; ``(output, received_splits)`` for
        alltoall; None if the handle is unknown or was synchronized already.

    Raises:
        HorovodInternalError: the operation failed; the handle is dropped.
    """
    return handle() if isinstance(handle, SparseInFlight) else _table.synchronize(handle)
