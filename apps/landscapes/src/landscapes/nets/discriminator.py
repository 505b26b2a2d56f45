"""The discriminator: judges patches of a picture at two scales, given its label map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from landscapes.nets.labels import LABELS
from landscapes.nets.spade import SLOPE, sharpen

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    def forward(self, inputs: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Return the features of each layer, for each input; the last are the judgments.

        Weights are computed once for all inputs, so that all are judged by the same ones.
        """
        features = [[F.leaky_relu(each, SLOPE)] for each in _convolve(self.convs[0], inputs)]
        for conv in self.convs[1:]:
            convolved = _convolve(conv, [each[-1] for each in features])
            for found, each in zip(features, convolved, strict=True):
                found.append(F.leaky_relu(F.instance_norm(each), SLOPE))
        for found in features:
            found.append(self.last(found[-1]))
        return features


def _convolve(conv: nn.Module, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    assert isinstance(conv, nn.Conv2d)
    weight = conv.weight
    return [F.conv2d(each, weight, conv.bias, conv.stride, conv.padding) for each in inputs]


class Discriminator(nn.Module):
    """Two patch discriminators; the second sees maps and pictures at half the size."""

    def __init__(self, preset: Preset, labels: int = LABELS, *, spectral: bool = True) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            PatchDiscriminator(preset.discriminator, labels + 3, spectral=spectral)
            for _ in range(SCALES)
        )

    def forward(
        self, labels: torch.Tensor, *pictures: torch.Tensor
    ) -> list[list[list[torch.Tensor]]]:
        """Return, for each batch of pictures and each scale, the features of all layers.

        The last of these are the judgments. ``labels`` are planes (n, l, h, w) of every batch of
        ``pictures`` (n, 3, h, w), which are in [-1, 1].
        """
        inputs = [torch.cat((labels, each), 1) for each in pictures]
        found: list[list[list[torch.Tensor]]] = [[] for _ in pictures]
        for scale in self.scales:
            for judgments, features in zip(found, scale(inputs), strict=True):
                judgments.append(features)
            inputs = [_halve(each) for each in inputs]
        return found


def _halve(pictures: torch.Tensor) -> torch.Tensor:
    return F.avg_pool2d(pictures, 3, 2, padding=1, count_include_pad=False)
