"""The distance of pictures in the features of a network that was trained to see landscapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from landscapes.nets.segmenter import Segmenter

WEIGHTS = (1 / 8, 1 / 4, 1 / 2, 1.0)


class Perceptual(nn.Module):
    """Mean distance of features at four depths of a frozen segmenter, deeper ones weighing more."""

    def __init__(self, segmenter: Segmenter) -> None:
        super().__init__()
        self.segmenter = segmenter.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Perceptual:
        """Stay in evaluation: the statistics of the features are frozen, too."""
        del mode
        return super().train(False)

    def forward(self, fake: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Return the distance of pictures (n, 3, h, w); no gradient flows to ``real``."""
        with torch.no_grad():
            theirs = self.segmenter.features(real)
        ours = self.segmenter.features(fake)
        terms = [
            weight * F.l1_loss(one, other)
            for weight, one, other in zip(WEIGHTS, ours, theirs, strict=True)
        ]
        return torch.stack(terms).sum()
