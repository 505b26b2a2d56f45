"""Gradients on their way through a reduction, and how the results come back into ``p.grad``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from horovod.torch.devices import wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._native import Handle
    from horovod.torch.compression import Compressor
    from horovod.torch.sparse import SparseInFlight
    from horovod.train.gradient_layouts import GradientLayout


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

    def write_back(self) -> None:
        """Puts the results into ``p.grad``, in the layout that it has or that others have."""
        for item in self.sent:
            reduced = self.compression.decompress(item.wire, item.context)
            # Reduced in place, unless it had to be converted.
            if reduced is not item.gradient:
                _write_back(item, reduced)


@dataclass(frozen=True)
class BucketInFlight:
    """Gradients that are reduced where they lie in shared memory.

    Attributes:
        handle: of the operation.
        elsewhere: parameters whose ``p.grad`` was not in the bucket when it was launched, with what
            it was, and the place of the result.
    """

    handle: Handle
    elsewhere: Sequence[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]]

    def wait(self) -> None:
        """Waits for the end of the operation."""
        self.handle.wait()

    def write_back(self) -> None:
        """Puts the results into ``p.grad`` where they are not there already."""
        for param, gradient, place in self.elsewhere:
            if gradient is None or gradient.layout is torch.strided:
                put(param, gradient, place)
            else:
                put(param, gradient, place.to_sparse(gradient.sparse_dim()))


def _write_back(item: SentDense, reduced: torch.Tensor) -> None:
    gradient = item.gradient
    if gradient is None:
        sparse_dim = item.layout.sparse_dim if item.layout else 0
        put(item.param, None, reduced.to_sparse(sparse_dim) if sparse_dim else reduced)
    elif gradient.layout is torch.strided:
        # Somebody may have dropped or replaced the gradient meanwhile.
        if item.param.grad is gradient:
            with torch.no_grad():
                gradient.copy_(reduced)
    else:
        put(item.param, gradient, reduced.to_sparse(gradient.sparse_dim()))


@dataclass(frozen=True)
class SparseGradientInFlight:
    """A gradient whose elements travel."""

    param: torch.Tensor
    gradient: torch.Tensor | None
    exchange: SparseInFlight

    def wait(self) -> None:
        """Waits for the end of the operation."""
        self.exchange.handle.wait()

    def write_back(self) -> None:
        """Puts the result into ``p.grad``, in the layout that it has."""
        reduced = self.exchange.result()
        if self.gradient is not None and self.gradient.layout is torch.strided:
            reduced = reduced.to_dense()
        put(self.param, self.gradient, reduced)


def put(param: torch.Tensor, launched: torch.Tensor | None, reduced: torch.Tensor) -> None:
    """Sets ``p.grad`` unless somebody dropped or replaced what was launched.

    A parameter that was frozen on this rank stays without gradient.
    """
    if param.grad is launched and (launched is not None or param.requires_grad):
        param.grad = reduced
