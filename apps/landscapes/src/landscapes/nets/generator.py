"""The generator: from a style and a label map to a picture."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from landscapes.nets.labels import LABELS
from landscapes.nets.spade import SLOPE, SpadeBlock

if TYPE_CHECKING:
    from landscapes.nets.presets import Preset

# Channels of the seven blocks, as multiples of the width; the last number is that of the output.
WIDTHS = (16, 16, 16, 16, 8, 4, 2, 1)
# Blocks before which the picture is doubled; smaller pictures leave out the first of them.
DOUBLED = (1, 3, 4, 5, 6)


class Generator(nn.Module):
    """Seven SPADE blocks between a style vector and a picture.

    Args:
        preset: the sizes.
        labels: planes of a label map.
        styled: begin with a linear map of the style; otherwise with the label map, shrunk, and
            ``forward`` ignores the style.
        synced: normalize over the batches of all ranks.
        spectral: divide weights of convolutions by their largest singular value.
    """

    def __init__(
        self,
        preset: Preset,
        labels: int = LABELS,
        *,
        styled: bool = True,
        synced: bool = True,
        spectral: bool = True,
    ) -> None:
        super().__init__()
        self.start, self.z_dim, self.size = preset.start, preset.z_dim, preset.size
        widths = [min(each, preset.cap) * preset.width for each in WIDTHS]
        self.styled, self.channels = styled, widths[0]
        if styled:
            self.first: nn.Module = nn.Linear(preset.z_dim, widths[0] * self.start**2)
        else:
            self.first = nn.Conv2d(labels, widths[0], 3, padding=1)
        self.blocks = nn.ModuleList(
            SpadeBlock(before, after, labels, preset.hidden, synced=synced, spectral=spectral)
            for before, after in itertools.pairwise(widths)
        )
        doublings = round(math.log2(preset.size / preset.start))
        self.doubled = frozenset(DOUBLED[len(DOUBLED) - doublings :])
        self.last = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, labels: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        """Return pictures (n, 3, size, size) in [-1, 1].

        ``labels`` are planes (n, labels, size, size), ``style`` is (n, z_dim).
        """
        pyramid = self._pyramid(labels)
        features = self._begin(pyramid, style)
        side = self.start
        for number, block in enumerate(self.blocks):
            if number in self.doubled:
                features = F.interpolate(features, scale_factor=2.0, mode="nearest")
                side *= 2
            features = block(features, pyramid[side])
        picture: torch.Tensor = self.last(F.leaky_relu(features, SLOPE))
        return torch.tanh(picture)

    def _pyramid(self, labels: torch.Tensor) -> dict[int, torch.Tensor]:
        """Return the label map by its side, nearest pixels, from ``size`` down to ``start``."""
        pyramid = {self.size: labels}
        side = self.size
        while side > self.start:
            step = self.size // (side // 2)
            side //= 2
            pyramid[side] = labels[:, :, ::step, ::step]
        return pyramid

    def _begin(self, pyramid: dict[int, torch.Tensor], style: torch.Tensor) -> torch.Tensor:
        if not self.styled:
            shrunk: torch.Tensor = self.first(pyramid[self.start])
            return shrunk
        features: torch.Tensor = self.first(style)
        return features.reshape(-1, self.channels, self.start, self.start)
