"""The devices of tensors, and their streams: the one place that touches ``torch.cuda``.

AMD's GPUs have the same names in PyTorch. Nothing here is called for tensors on the CPU.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch

from horovod._native import Buffer
from horovod._rank import context
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._native import Handle

_PIN = "call torch.cuda.set_device(hvd.local_rank()) after hvd.init(), before the first GPU tensor"

_lock = threading.Lock()
_has_checked_place = False


def view(tensor: torch.Tensor, dtype: str) -> Buffer:
    """Views a GPU tensor's memory, for work that begins behind the current stream's.

    Args:
        tensor: on a GPU, dense, contiguous.
        dtype: as the engine calls it.

    Raises:
        UsageError: a CUDA graph is being captured.
    """
    index = tensor.get_device()
    if not _has_checked_place:
        _check_place(index)
    if torch.cuda.is_current_stream_capturing():
        raise UsageError(
            f"the tensor of shape {tuple(tensor.shape)} on cuda:{index} was given to Horovod while "
            "a CUDA graph is being captured; collectives cannot be part of a graph, so call them "
            "between two graphs"
        )
    return Buffer(tensor.data_ptr(), dtype, tensor.shape, index, _stream(index))


def wait(handle: Handle, tensor: torch.Tensor) -> None:
    """Waits for an operation; what comes next on the current stream sees its results.

    The host does not wait for the device: it goes on when the operation is on its stream.

    Args:
        handle: of the operation.
        tensor: any one of its tensors; they all are on the same device.

    Raises:
        HorovodInternalError: the operation failed.
    """
    handle.wait()
    if not tensor.is_cpu:
        follow(handle, tensor.get_device())


def hand_over(handle: Handle, tensor: torch.Tensor) -> None:
    """Do the same as :func:`wait` for an operation that has been waited for already."""
    if not tensor.is_cpu:
        follow(handle, tensor.get_device())


def follow(handle: Handle, index: int) -> None:
    """Lets the current stream of a device go on behind an operation that has been waited for."""
    handle.order(index, _stream(index))


def by_device(tensors: Sequence[torch.Tensor]) -> list[Sequence[torch.Tensor]]:
    """Divides tensors into those of each device: an operation is for one device.

    Args:
        tensors: any number; their order stays.
    """
    if len(tensors) < 2:
        return [tensors] if tensors else []
    parts: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in tensors:
        parts.setdefault(tensor.device, []).append(tensor)
    return list(parts.values())


def device_of(index: int) -> torch.device:
    """The device of an index."""
    return torch.device("cuda", index)


def beside(tensor: torch.Tensor | None, values: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """Makes a tensor of a few values on the device of another one.

    Args:
        tensor: says where; the CPU if there is none.
        values: as of ``torch.tensor``.
        dtype: of the result.
    """
    # Also where torch.set_default_device() wants everything to be on a GPU.
    made = torch.tensor(values, dtype=dtype, device="cpu")
    # From memory that is not pinned, the host would wait for all that the stream has to do.
    if tensor is None or tensor.is_cpu:
        return made
    return made.pin_memory().to(tensor.device, non_blocking=True)


def read_later(tensor: torch.Tensor) -> Callable[[], float]:
    """Copy a number from a GPU behind what its current stream has to do, without waiting.

    Args:
        tensor: of one element, on a GPU.

    Returns:
        What waits for the copy, on any thread, and returns the number.
    """
    copy = torch.empty((), dtype=tensor.dtype, device="cpu", pin_memory=True)
    copy.copy_(tensor.reshape(()), non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(tensor.get_device()))

    def read() -> float:
        copied.synchronize()
        return float(copy.item())

    return read


def current_index() -> int:
    """Index of the current GPU; -1 if this process uses none, which asking does not change."""
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.current_device() if initialized else -1


def _stream(index: int) -> int:
    stream: int = torch.cuda.current_stream(index).cuda_stream
    return stream


def _check_place(index: int) -> None:
    """Once: tells a program that probably forgot to choose its device.

    Otherwise the ranks of a host share a GPU in silence while others idle, or each makes a context
    of some hundred MiB on the first one.
    """
    global _has_checked_place
    with _lock:
        if _has_checked_place:
            return
        _has_checked_place = True
    local_rank = context.settings().local_rank
    current, count = torch.cuda.current_device(), torch.cuda.device_count()
    problem = ""
    if current != index:
        problem = f"a tensor is on cuda:{index}, but the current device is cuda:{current}"
    elif index == 0 and 0 < local_rank < count:
        problem = f"all ranks of this host seem to use cuda:0, one of {count} devices"
    if problem:
        warnings.warn(f"local rank {local_rank}: {problem}; {_PIN}", stacklevel=2)
