"""All networks of a run, and the average of those that paint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from landscapes.nets import Discriminator, Generator, StyleEncoder
from landscapes.nets.start import initialize, plain_weights

if TYPE_CHECKING:
    from landscapes.nets import Preset

MOST_DECAY = 0.998


class Painter(nn.Module):
    """The networks that are kept: a generator and a style encoder."""

    def __init__(self, preset: Preset, *, synced: bool = True, spectral: bool = True) -> None:
        super().__init__()
        self.generator = Generator(preset, synced=synced, spectral=spectral)
        self.encoder = StyleEncoder(preset, spectral=spectral)


class Networks(nn.Module):
    """``painter`` and ``discriminator``, which train, and ``average``, a plain painter.

    All weights follow from ``seed``, so they are the same on all ranks. ``synced`` normalizes over
    the batches of all ranks.
    """

    def __init__(self, preset: Preset, seed: int, *, synced: bool = True) -> None:
        super().__init__()
        self.preset = preset
        self.painter = Painter(preset, synced=synced)
        self.discriminator = Discriminator(preset)
        initialize(self.painter, preset.gain, seed)
        initialize(self.discriminator, preset.gain, seed + 1)
        self.average = Painter(preset, synced=synced, spectral=False).requires_grad_(False).eval()
        self.update_average(0)

    @torch.no_grad()
    def update_average(self, step: int) -> None:
        """Move the average toward the weights after ``step`` steps; at 0, make it equal to them.

        Step s has a share of 9 / (s + 9), and at least 1 / 500: early averages are short.
        """
        decay = min(MOST_DECAY, step / (step + 9))
        average = dict(self.average.named_parameters())
        for name, value in plain_weights(self.painter):
            average[name].lerp_(value, 1 - decay)
