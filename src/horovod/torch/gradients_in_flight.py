"""Gradients on their way through a reduction, and how the results come back into ``p.grad``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from horovod.torch.devices import wait

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from horovod._native import Handle
    from horovod._train.gradient_layouts import GradientLayout
    from horovod.torch.compression import Compressor
    from horovod.torch.sparse import SparseInFlight


@dataclass(frozen=True)
class SentDense:
    """A gradient that travels as a whole.

    Attributes:
        param: whose gradient it is.
        gradient: ``param.grad`` when it was launched, None if there was none.
        wire: the tensor that is reduced in place; may be the gradient itself.
        context: what the compression needs to restore it.
        layout: what the ranks have agreed, None if they have not yet.
    """

    param: torch.Tensor
    gradient: torch.Tensor | None
    wire: torch.Tensor
    context: Any
    layout: GradientLayout | None


@dataclass(frozen=True)
class DenseInFlight:
    """Gradients that travel as wholes in one operation."""

    handle: Handle
    sent: Sequence[SentDense]
    compression: type[Compressor] | Compressor

    def wait(self) -> None:
        """Waits for the end of the operation."""
        wait(self.handle, self.sent[0].wire)

    def write_back(self, unused: Container[torch.Tensor]) -> None:
        """Puts the results into ``p.grad``, in the layout that it has or that others have."""
        for item in self.sent:
            reduced = self.compression.decompress(item.wire, item.context)
            sparse_dim = item.layout.sparse_dim if item.layout else 0
            put(item.param, item.gradient, reduced, sparse_dim, unused)


@dataclass(frozen=True)
class BucketInFlight:
    """Gradients that are reduced where they lie in shared memory.

    Attributes:
        handle: of the operation.
        sent: each parameter, with ``p.grad`` when it was launched, and the place of the result,
            which may be the same.
    """

    handle: Handle
    sent: Sequence[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]]

    def wait(self) -> None:
        """Waits for the end of the operation."""
        self.handle.wait()

    def write_back(self, unused: Container[torch.Tensor]) -> None:
        """Puts the results into ``p.grad`` where they are not there already."""
        for param, gradient, place in self.sent:
            if gradient is not place or (unused and param in unused):
                put(param, gradient, place, 0, unused)


@dataclass(frozen=True)
class SparseGradientInFlight:
    """A gradient whose elements travel."""

    param: torch.Tensor
    gradient: torch.Tensor | None
    exchange: SparseInFlight

    def wait(self) -> None:
        """Waits for the end of the operation."""
        self.exchange.handle.wait()

    def write_back(self, unused: Container[torch.Tensor]) -> None:
        """Puts the result into ``p.grad``, in the layout that it has."""
        put(self.param, self.gradient, self.exchange.result(), 0, unused)


def put(
    param: torch.Tensor,
    launched: torch.Tensor | None,
    reduced: torch.Tensor,
    sparse_dim: int,
    unused: Container[torch.Tensor],
) -> None:
    """Puts a result into ``p.grad`` unless the program dropped or replaced what was launched.

    A gradient stays the object that it is, in the memory where it is, as somebody else may refer to
    it. One that has a graph gives way, as its graph is that of this rank's loss alone; so does one
    whose elements share memory. A parameter that was frozen on this rank stays without gradient.

    Args:
        param: the parameter.
        launched: ``p.grad`` when it was launched, None if there was none.
        reduced: the result, dense or sparse; may be the gradient itself.
        sparse_dim: the sparse dimensions of the gradient where others have a sparse one.
        unused: parameters that no rank has used.
    """
    if param.grad is not launched:
        return
    if param in unused:
        param.grad = None
    elif launched is None:
        if param.requires_grad:
            param.grad = reduced.to_sparse(sparse_dim) if sparse_dim else reduced
    elif launched.requires_grad or not _is_writable(launched):
        param.grad = _laid_out(reduced, launched)
    elif reduced is not launched:
        with torch.no_grad():
            launched.copy_(_laid_out(reduced, launched))


def _laid_out(reduced: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A result in the layout of a gradient."""
    if like.layout is reduced.layout:
        return reduced
    if like.layout is torch.strided:
        return reduced.to_dense()
    if like.layout is torch.sparse_coo:
        return reduced.to_sparse(like.sparse_dim())
    return reduced.to_sparse(layout=like.layout)


def _is_writable(gradient: torch.Tensor) -> bool:
    """Whether each element has memory of its own, and the values of the result find room."""
    if gradient.layout is not torch.strided:
        return gradient.layout is torch.sparse_coo
    return all(
        stride or size < 2 for stride, size in zip(gradient.stride(), gradient.shape, strict=True)
    )
