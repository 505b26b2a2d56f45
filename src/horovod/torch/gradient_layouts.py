"""Answers :mod:`horovod._train.gradient_layouts` about the gradients of PyTorch parameters."""

from __future__ import annotations

import torch

from horovod._train.gradient_layouts import Kind
from horovod.torch.sparse import sparse_bytes


class ParameterGradients:
    """Looks at ``p.grad``."""

    def kind(self, param: torch.Tensor) -> Kind:
        """Return the kind of the current gradient."""
        gradient = param.grad
        if gradient is None:
            return Kind.NONE
        return Kind.SPARSE if gradient.layout is torch.sparse_coo else Kind.DENSE

    def sparse_extent(self, param: torch.Tensor) -> tuple[int, int]:
        """Return a sparse gradient's number of sparse dimensions and the bytes of its elements."""
        assert param.grad is not None
        return param.grad.sparse_dim(), sparse_bytes(param.grad)

    def dense_bytes(self, param: torch.Tensor) -> int:
        """The bytes of the whole gradient."""
        return param.numel() * param.element_size()
