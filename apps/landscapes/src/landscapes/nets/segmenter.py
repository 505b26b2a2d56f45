"""A small U-Net that sees classes, hour and biome in a picture.

Separate ones, of other widths, seeds and data, guide training, judge results and label photos.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from landscapes.nets.labels import LABELS
from landscapes.pair import BIOMES, HOURS

DEPTH = 4
HOUR_NAMES = tuple(HOURS)


@dataclass(frozen=True)
class Sight:
    """What a segmenter sees: logits of ``classes`` (n, 9, h, w), ``hour`` (n, 5), ``biome`` (n, 5).

    ``pooled`` (n, 8 * width) are the features that hour and biome are read from.
    """

    classes: torch.Tensor
    hour: torch.Tensor
    biome: torch.Tensor
    pooled: torch.Tensor


class Segmenter(nn.Module):
    """Four levels of two convolutions down, and as many up again with features of the way down."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        widths = [3, *(width * 2**level for level in range(DEPTH))]
        self.down = nn.ModuleList(
            _pair(before, after) for before, after in itertools.pairwise(widths)
        )
        self.up = nn.ModuleList(
            _pair(widths[level] + widths[level + 1], widths[level])
            for level in range(DEPTH - 1, 0, -1)
        )
        self.classes = nn.Conv2d(width, LABELS, 1)
        self.hour = nn.Linear(widths[-1], len(HOURS))
        self.biome = nn.Linear(widths[-1], len(BIOMES))

    def features(self, pictures: torch.Tensor) -> list[torch.Tensor]:
        """Return features of four depths, from the full size to an eighth of it."""
        found: list[torch.Tensor] = []
        for level, block in enumerate(self.down):
            found.append(block(F.max_pool2d(found[-1], 2) if level else pictures))
        return found

    def forward(self, pictures: torch.Tensor) -> Sight:
        """Return what is seen in pictures (n, 3, h, w) in [-1, 1]; h and w are multiples of 8."""
        found = self.features(pictures)
        pooled = found[-1].mean((2, 3))
        features = found[-1]
        for block, beside in zip(self.up, reversed(found[:-1]), strict=True):
            doubled = F.interpolate(features, scale_factor=2.0, mode="nearest")
            features = block(torch.cat((doubled, beside), 1))
        return Sight(self.classes(features), self.hour(pooled), self.biome(pooled), pooled)


def _pair(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.LeakyReLU(0.1),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.LeakyReLU(0.1),
    )
