"""PyTorch tensors and the engine's buffers: the one place where memory changes hands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.utils.dlpack

from horovod._native import NativeArray, TensorViews
from horovod._rank.reduction import ReduceOp
from horovod._train.same_parameters import Parameter
from horovod.errors import UsageError
from horovod.torch import devices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeGuard

    from horovod._native import Buffer, Handle

_NAMES = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64"

# uint16, uint32 and uint64 came with PyTorch 2.3.
_DTYPE_NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name for name in _NAMES.split() if hasattr(torch, name)
}

_cpu_views = TensorViews(_DTYPE_NAMES, torch.strided, [torch.Tensor, torch.nn.Parameter])


def dtype_name(dtype: torch.dtype) -> str | None:
    """Return the engine's name of a dtype; None if it does not know it."""
    return _DTYPE_NAMES.get(dtype)


def view(tensor: torch.Tensor) -> Buffer:
    """Views a tensor's memory; the caller keeps the tensor alive.

    Args:
        tensor: dense, contiguous, on the CPU or a GPU; any shape; bool, an integer type, float16,
            bfloat16, float32, float64 or complex. Of complex numbers, it is a view of pairs of
            floats, with two more dimensions (1, 2): see :func:`complex_of`.

    Raises:
        UsageError: it is something else; the message says what.
    """
    buffer = _cpu_views.view(tensor)
    return _other_view(tensor) if buffer is None else buffer


def _other_view(tensor: torch.Tensor) -> Buffer:
    try:
        dtype = _DTYPE_NAMES[tensor.dtype]
        # The negative bit of a view such as z.conj().imag is not in the memory.
        is_plain = tensor.layout is torch.strided and tensor.is_contiguous()
        if is_plain and not tensor.is_neg() and tensor.is_cuda:
            return devices.view(tensor, dtype)
    except (KeyError, AttributeError):
        if _is_complex_memory(tensor):
            return view(torch.view_as_real(tensor.detach()).unsqueeze(-2))
    raise UsageError(_refusal(tensor))


def complex_of(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what the engine made of views of complex tensors, as a tensor of their dtype.

    Args:
        tensor: a result of the engine.
        dtype: of the tensor that was given; if it is not complex, nothing changes.
    """
    return torch.view_as_complex(tensor.squeeze(-2)) if dtype.is_complex else tensor


def check_sums(op: ReduceOp, tensors: Sequence[torch.Tensor]) -> None:
    """Refuses reductions that complex numbers do not have.

    Raises:
        UsageError: a tensor is complex, and ``op`` is neither Sum nor Average.
    """
    if op in (ReduceOp.AVERAGE, ReduceOp.SUM):
        return
    for tensor in tensors:
        if tensor.is_complex():
            raise UsageError(
                f"op={op.name} of the tensor of shape {tuple(tensor.shape)} and {tensor.dtype}: "
                "complex numbers have Sum and Average only; use one of them, or reduce real and "
                "imaginary parts as numbers of their own: torch.view_as_real(tensor.resolve_conj())"
            )


def check_rows(tensors: Sequence[torch.Tensor], word: str) -> None:
    """Refuses complex tensors without rows; the engine refuses the others.

    Args:
        tensors: that have to have at least one dimension.
        word: the operation.

    Raises:
        UsageError: a complex tensor has no dimension.
    """
    for tensor in tensors:
        if tensor.is_complex() and tensor.dim() == 0:
            raise UsageError(f"{word} of a tensor without dimensions; use tensor.reshape(1)")


def _is_complex_memory(tensor: object) -> TypeGuard[torch.Tensor]:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_complex()
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def views(tensors: Sequence[torch.Tensor]) -> list[Buffer]:
    """Views each tensor of a group.

    Raises:
        UsageError: there is none, or one cannot be viewed.
    """
    if not tensors:
        raise UsageError("a grouped operation needs at least one tensor")
    return [view(tensor) for tensor in tensors]


def memory_of_one(tensor: torch.Tensor) -> object:
    """Do the same as :func:`memory_of` for a tensor, with fewer objects."""
    storage = tensor.untyped_storage()
    return storage if type(tensor) is torch.Tensor else (tensor, storage)


def memory_of(*groups: Sequence[torch.Tensor]) -> list[object]:
    """Return the tensors of an operation and their storages, to keep them alive.

    ``tensor.data = ...`` frees the storage of a tensor that lives on; a tensor of another class
    may have its memory elsewhere. Nothing keeps memory that a program frees itself, with
    ``resize_()`` of a tensor or a storage.
    """
    kept: list[object] = []
    for tensors in groups:
        kept += tensors
        kept += [tensor.untyped_storage() for tensor in tensors]
    return kept


def adopt(array: NativeArray) -> torch.Tensor:
    """Turns host memory that the engine allocated into a tensor, without a copy."""
    try:
        return torch.utils.dlpack.from_dlpack(array)
    except RuntimeError:  # PyTorch 2.1 takes all dtypes but bool
        if array.dtype != "bool":
            raise
        as_bytes = array.part(0, "uint8", array.shape)
        return torch.utils.dlpack.from_dlpack(as_bytes).view(torch.bool)


def results(handle: Handle) -> tuple[torch.Tensor, ...]:
    """The tensors that the engine allocated for an operation which has been waited for.

    What is on a GPU is copied, on the device, into memory of PyTorch's own.
    """
    arrays = handle.results()
    if arrays and arrays[0].device >= 0:
        return tuple(map(_copied, arrays))
    return tuple(map(adopt, arrays))


def _copied(array: NativeArray) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, array.dtype)
    tensor = torch.empty(array.shape, dtype=dtype, device=devices.device_of(array.device))
    array.copy_to(view(tensor))
    return tensor


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it is contiguous and holds its values as they are, else such a copy."""
    return tensor.resolve_conj().resolve_neg().contiguous()


def parameter_of(name: str, tensor: torch.Tensor) -> Parameter:
    """Return the properties of a tensor that must be the same on all ranks."""
    layout = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    return Parameter(name, layout, name)


def _version_counter() -> Callable[[Sequence[torch.Tensor]], None]:
    """What autograd.graph.increment_version calls, if it takes any number of tensors of any kind.

    Those made in inference mode have no version.
    """
    with torch.inference_mode():
        without_version = torch.empty(0, device="cpu")
    try:
        count: Callable[[Sequence[torch.Tensor]], None] = torch._C._increment_version
        count((without_version,))
    except (AttributeError, TypeError, RuntimeError):
        return _count_versions_one_by_one
    return count


def _count_versions_one_by_one(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


_count_versions = _version_counter()


def mark_written(tensors: Sequence[torch.Tensor]) -> None:
    """Tells autograd that the engine writes into the tensors, as an in-place operation would."""
    _count_versions(tensors)


def _refusal(tensor: object) -> str:
    if not isinstance(tensor, torch.Tensor):
        return f"expected a torch.Tensor, got {type(tensor).__name__}"
    what = f"the tensor of shape {tuple(tensor.shape)} and {tensor.dtype}"
    if tensor.layout is not torch.strided:
        return f"{what} is sparse ({tensor.layout}), which is not supported; use tensor.to_dense()"
    if tensor.device.type == "meta":
        return f"{what} is on the meta device and has no values to send"
    if tensor.device.type not in ("cpu", "cuda"):
        return (
            f"{what} is on {tensor.device}; Horovod moves tensors on the CPU and on GPUs that "
            "PyTorch calls cuda: use tensor.cpu()"
        )
    if tensor.is_conj():
        return f"{what} is a conjugate whose memory holds other values; use tensor.resolve_conj()"
    if tensor.is_neg():
        return f"{what} is a negative whose memory holds other values; use tensor.resolve_neg()"
    if not tensor.is_complex() and tensor.dtype not in _DTYPE_NAMES:
        names = f"{_NAMES} complex64 complex128"
        return f"{what}: this tensor type is not supported; supported types: {names}"
    return f"{what} is not contiguous in memory; use tensor.contiguous()"
