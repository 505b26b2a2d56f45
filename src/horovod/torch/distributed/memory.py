"""What the engine may do with the memory of tensors, and how results get into tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from horovod._native import Handle
from horovod._rank.reduction import ReduceOp
from horovod.errors import UnsupportedError, UsageError
from horovod.torch.tensors import dense, dtype_name

if TYPE_CHECKING:
    from collections.abc import Sequence

Finish = Callable[[Handle], None]
"""Moves the results of an ended operation into the tensors of the caller."""

_RED_OPS: Any = torch.distributed.ReduceOp.RedOpType  # its stub lacks the members
_REDUCE_OPS = {
    _RED_OPS.SUM: ReduceOp.SUM,
    _RED_OPS.AVG: ReduceOp.AVERAGE,
    _RED_OPS.MIN: ReduceOp.MIN,
    _RED_OPS.MAX: ReduceOp.MAX,
    _RED_OPS.PRODUCT: ReduceOp.PRODUCT,
    _RED_OPS.PREMUL_SUM: ReduceOp.SUM,
}
BITWISE: dict[object, Callable[..., torch.Tensor]] = {
    _RED_OPS.BAND: torch.bitwise_and,
    _RED_OPS.BOR: torch.bitwise_or,
    _RED_OPS.BXOR: torch.bitwise_xor,
}
"""The reductions of bits, which the engine does not have."""


def reduction_of(op: Any) -> tuple[ReduceOp, float]:
    """Return the engine's reduction for one of PyTorch, and the factor applied before it.

    Args:
        op: a ``torch.distributed.ReduceOp``.

    Raises:
        UnsupportedError: the engine has no such reduction.
    """
    kind = op.op
    reduce_op = _REDUCE_OPS.get(kind)
    if reduce_op is None:
        raise UnsupportedError(f"the backend horovod has no {kind} for this operation")
    if kind != _RED_OPS.PREMUL_SUM:
        return reduce_op, 1.0
    # Older PyTorch shows the factor only in the state for pickling.
    return reduce_op, float(op.factor if hasattr(op, "factor") else op.__getstate__()[1])


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor of the same bytes whose dtype the engine knows.

    It shares the memory of a contiguous tensor; the values of another one are copied. Dtypes that
    the engine cannot reduce, such as float8, become bytes.

    Raises:
        UsageError: it is sparse, or not on the CPU.
    """
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        raise UsageError(
            f"the backend horovod moves dense tensors on the CPU; got a tensor of shape "
            f"{tuple(tensor.shape)}, {tensor.layout}, on {tensor.device}: use tensor.to_dense() or "
            'tensor.cpu(), or init_process_group("cpu:horovod,cuda:nccl") for tensors on GPUs'
        )
    tensor = dense(tensor.detach())
    if dtype_name(tensor.dtype) is None and not tensor.is_complex():
        return tensor.reshape(-1).view(torch.uint8)
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def rows(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return the elements of a tensor as ``count`` equal rows.

    Args:
        tensor: contiguous, as of :func:`movable`.
        count: a divisor of the number of elements.

    Returns:
        A view of shape (count, elements per row).

    Raises:
        UsageError: the elements cannot be divided equally.
    """
    if count == 0 or tensor.numel() % count != 0:
        raise UsageError(
            f"a tensor of shape {tuple(tensor.shape)} cannot be divided equally among {count} ranks"
        )
    return tensor.view(count, tensor.numel() // count)


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all tensors one behind the other, as a copy if there are several."""
    parts = [movable(tensor).reshape(-1) for tensor in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def restore(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Finish | None]:
    """Return contiguous tensors for an operation in place, and what copies them back.

    Args:
        tensors: to be changed by the operation.

    Returns:
        The tensors themselves or contiguous copies, and None if there are no copies.
    """
    inner = [movable(tensor) for tensor in tensors]
    copies = [
        (tensor, copy)
        for tensor, copy in zip(tensors, inner, strict=True)
        if copy.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous()
    ]
    if not any(tensor.numel() for tensor, _ in copies):
        return inner, None

    def finish(handle: Handle) -> None:
        del handle
        for tensor, copy in copies:
            fill(tensor, copy)

    return inner, finish


def fill(output: torch.Tensor, elements: torch.Tensor) -> None:
    """Copy elements of :func:`movable` form into a tensor of any strides.

    Args:
        output: the tensor to write.
        elements: as many bytes as it holds, of its dtype or of the form that was sent.
    """
    flat_elements = elements.reshape(-1)
    if flat_elements.dtype != output.dtype:
        flat_elements = flat_elements.view(output.dtype)
    output.detach().copy_(flat_elements.view(output.shape))


def count_of(tensor: torch.Tensor) -> int:
    """Return how many elements :func:`movable` makes of a tensor."""
    return tensor.numel() * elements_per_value(tensor)


def elements_per_value(tensor: torch.Tensor) -> int:
    """Return how many elements :func:`movable` makes of one value of a tensor."""
    if tensor.is_complex():
        return 2
    return tensor.element_size() if dtype_name(tensor.dtype) is None else 1
