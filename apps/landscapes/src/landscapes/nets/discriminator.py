"""The discriminator: judges patches of a picture at two scales, given its label map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from landscapes.nets.labels import LABELS
from landscapes.nets.spade import SLOPE, sharpen

if TYPE_CHECKING:
    from landscapes.nets.presets import Preset

SCALES = 2
STRIDES = (2, 2, 2, 1)


class PatchDiscriminator(nn.Module):
    """Five convolutions; each value of the last judges a patch."""

    def __init__(self, width: int, inputs: int, *, spectral: bool = True) -> None:
        super().__init__()
        widths = [inputs, width, 2 * width, 4 * width, 8 * width]
        pairs = zip(widths[:-1], widths[1:], STRIDES, strict=True)
        self.convs = nn.ModuleList(
            sharpen(nn.Conv2d(before, after, 4, stride, padding=2), spectral and number > 0)
            for number, (before, after, stride) in enumerate(pairs)
        )
        self.last = nn.Conv2d(widths[-1], 1, 4, padding=2)

    def forward(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        """Return the features of each layer; the last are the judgments (n, 1, h, w)."""
        features = [F.leaky_relu(self.convs[0](inputs), SLOPE)]
        for conv in self.convs[1:]:
            features.append(F.leaky_relu(F.instance_norm(conv(features[-1])), SLOPE))
        return [*features, self.last(features[-1])]


class Discriminator(nn.Module):
    """Two patch discriminators; the second sees maps and pictures at half the size."""

    def __init__(self, preset: Preset, labels: int = LABELS, *, spectral: bool = True) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            PatchDiscriminator(preset.discriminator, labels + 3, spectral=spectral)
            for _ in range(SCALES)
        )

    def forward(self, labels: torch.Tensor, pictures: torch.Tensor) -> list[list[torch.Tensor]]:
        """Return, for each scale, the features of all layers; the last are the judgments.

        ``labels`` are planes (n, l, h, w), ``pictures`` (n, 3, h, w) in [-1, 1].
        """
        inputs = torch.cat((labels, pictures), 1)
        found = []
        for scale in self.scales:
            found.append(scale(inputs))
            inputs = F.avg_pool2d(inputs, 3, 2, padding=1, count_include_pad=False)
        return found
