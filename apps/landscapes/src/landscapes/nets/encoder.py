"""The style encoder: from a picture to the mean and spread of its style."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from landscapes.nets.spade import SLOPE, sharpen

if TYPE_CHECKING:
    from landscapes.nets.presets import Preset

SMALLEST = 4  # pixels of a side after the last convolution
MOST = 8  # channels at most, as a multiple of the first layer's


class StyleEncoder(nn.Module):
    """Convolutions that halve a picture until it has 4 x 4 pixels, then two linear maps."""

    def __init__(self, preset: Preset, *, spectral: bool = True) -> None:
        super().__init__()
        halvings = round(math.log2(preset.size / SMALLEST))
        widths = [3, *(min(2**step, MOST) * preset.encoder for step in range(halvings))]
        self.convs = nn.ModuleList(
            sharpen(nn.Conv2d(before, after, 3, 2, padding=1), spectral)
            for before, after in itertools.pairwise(widths)
        )
        features = widths[-1] * SMALLEST**2
        self.mean = nn.Linear(features, preset.z_dim)
        self.log_variance = nn.Linear(features, preset.z_dim)

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and logarithm of the variance of styles, each (n, z_dim).

        ``pictures`` are (n, 3, size, size) in [-1, 1].
        """
        features = pictures
        for conv in self.convs:
            features = F.leaky_relu(F.instance_norm(conv(features)), SLOPE)
        flat = features.flatten(1)
        return self.mean(flat), self.log_variance(flat)


def draw_styles(
    mean: torch.Tensor, log_variance: torch.Tensor, noise: torch.Tensor
) -> torch.Tensor:
    """Return styles (n, z): ``noise``, drawn from the standard normal, spread around ``mean``."""
    return mean + noise * torch.exp(0.5 * log_variance)
