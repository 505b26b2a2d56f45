"""The SPADE layer and the residual block made of it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import horovod.torch as hvd

SLOPE = 0.2


def sharpen(conv: nn.Conv2d, spectral: bool) -> nn.Module:
    """Return ``conv``, with its weight divided by its largest singular value if ``spectral``."""
    return spectral_norm(conv) if spectral else conv


def normalization(channels: int, synced: bool) -> nn.Module:
    """Return normalization over batch and space, without scale and shift of its own.

    Statistics are those of all ranks together if ``synced``.
    """
    if synced:
        return hvd.SyncBatchNorm(channels, affine=False)
    return nn.BatchNorm2d(channels, affine=False)


class Modulation(nn.Module):
    """Scale and shift of each pixel and channel, from the labels at that pixel and around it."""

    def __init__(self, channels: int, labels: int, hidden: int) -> None:
        super().__init__()
        self.shared = nn.Conv2d(labels, hidden, 3, padding=1)
        self.scale = nn.Conv2d(hidden, channels, 3, padding=1)
        self.shift = nn.Conv2d(hidden, channels, 3, padding=1)

    def forward(self, normalized: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return normalized * (1 + scale) + shift, of the shape of ``normalized`` (n, c, h, w).

        ``labels`` are planes (n, l, h, w) of the same height and width.
        """
        hidden = F.relu(self.shared(labels))
        return torch.addcmul(normalized + self.shift(hidden), normalized, self.scale(hidden))


class Spade(nn.Module):
    """A normalization whose scale and shift follow the label map."""

    def __init__(self, channels: int, labels: int, hidden: int, synced: bool = True) -> None:
        super().__init__()
        self.norm = normalization(channels, synced)
        self.modulation = Modulation(channels, labels, hidden)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return features (n, c, h, w), normalized, scaled and shifted by labels (n, l, h, w)."""
        modulated: torch.Tensor = self.modulation(self.norm(features), labels)
        return modulated


class SpadeBlock(nn.Module):
    """Two convolutions after SPADE layers, beside a shortcut.

    The first SPADE layer and that of a learned shortcut normalize the same features: it is done
    once for both, which also halves their messages between ranks.
    """

    def __init__(
        self, inputs: int, outputs: int, labels: int, hidden: int, *, synced: bool, spectral: bool
    ) -> None:
        super().__init__()
        middle = min(inputs, outputs)
        self.spade_0 = Spade(inputs, labels, hidden, synced)
        self.conv_0 = sharpen(nn.Conv2d(inputs, middle, 3, padding=1), spectral)
        self.spade_1 = Spade(middle, labels, hidden, synced)
        self.conv_1 = sharpen(nn.Conv2d(middle, outputs, 3, padding=1), spectral)
        self.learned = inputs != outputs
        if self.learned:
            self.modulation_s = Modulation(inputs, labels, hidden)
            self.conv_s = sharpen(nn.Conv2d(inputs, outputs, 1, bias=False), spectral)

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return (n, outputs, h, w) of features (n, inputs, h, w) and label planes (n, l, h, w)."""
        normalized = self.spade_0.norm(features)
        inner = self.conv_0(F.leaky_relu(self.spade_0.modulation(normalized, labels), SLOPE))
        inner = self.conv_1(F.leaky_relu(self.spade_1(inner, labels), SLOPE))
        shortcut = features
        if self.learned:
            shortcut = self.conv_s(self.modulation_s(normalized, labels))
        total: torch.Tensor = shortcut + inner
        return total
