"""Batches that follow from a seed and a position alone, however many ranks share them.

Position p of a stream is one picture of epoch p // N, in the order of that epoch, with a flip and
noise of its own. Ranks take neighboring positions. So N ranks of b see what one rank of N x b
sees, and a run that resumes, or loses a rank, goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from landscapes.sketch.by_hand import draw_by_hand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from landscapes.data import Pairs

ORDER, CHANGES, HANDS = 0, 1, 2  # which numbers of a seed


@dataclass(frozen=True)
class Batch:
    """Pictures (n, 3, s, s) in [-1, 1], labels (n, s, s) of ids, and noise (n, z).

    ``drawn`` is the labels as the generator gets them, if it gets others.
    """

    pictures: torch.Tensor
    labels: torch.Tensor
    noise: torch.Tensor
    drawn: torch.Tensor | None = None

    @property
    def wanted(self) -> torch.Tensor:
        """What the generator is asked to paint: labels (n, s, s)."""
        return self.labels if self.drawn is None else self.drawn

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Batch:
        """Return the batch on ``device``; pictures and noise in ``dtype``."""
        return Batch(
            self.pictures.to(device, dtype),
            self.labels.to(device),
            self.noise.to(device, dtype),
            None if self.drawn is None else self.drawn.to(device),
        )


class Stream:
    """The pictures of a split, forever. A share ``by_hand`` of the maps is drawn as by hand."""

    def __init__(self, pairs: Pairs, seed: int, z_dim: int, by_hand: float = 0.0) -> None:
        self.pairs, self.seed, self.z_dim, self.by_hand = pairs, seed, z_dim, by_hand
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def batch(self, position: int, count: int) -> Batch:
        """Return the pictures at ``position`` and after it."""
        positions = range(position, position + count)
        images, labels = self.pairs.batch([self.index_at(each) for each in positions])
        flips, noise = self._draw(positions)
        images[flips] = images[flips, :, ::-1]
        labels[flips] = labels[flips, :, ::-1]
        drawn = torch.from_numpy(self._redraw(labels, positions)) if self.by_hand else None
        return Batch(to_pictures(images), torch.from_numpy(labels), torch.from_numpy(noise), drawn)

    def index_at(self, position: int) -> int:
        """Return which picture of the split is at ``position``."""
        epoch, place = divmod(position, len(self.pairs))
        if epoch != self._epoch:
            drawn = np.random.default_rng([self.seed, ORDER, epoch])
            self._epoch, self._order = epoch, drawn.permutation(len(self.pairs))
        return int(self._order[place])

    def _draw(self, positions: Sequence[int]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        drawn = [np.random.default_rng([self.seed, CHANGES, each]) for each in positions]
        flips = np.array([each.random() < 0.5 for each in drawn])
        noise = np.stack([each.standard_normal(self.z_dim, np.float32) for each in drawn])
        return flips, noise

    def _redraw(self, labels: NDArray[np.uint8], positions: Sequence[int]) -> NDArray[np.uint8]:
        redrawn = labels.copy()
        for number, position in enumerate(positions):
            draw = np.random.default_rng([self.seed, HANDS, position])
            if draw.random() < self.by_hand:
                redrawn[number] = draw_by_hand(labels[number], draw)
        return redrawn


def to_pictures(images: NDArray[np.uint8]) -> torch.Tensor:
    """Return uint8 (n, h, w, 3) as float32 (n, 3, h, w) in [-1, 1]."""
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return torch.from_numpy(planes).float() / 127.5 - 1


def to_images(pictures: torch.Tensor) -> NDArray[np.uint8]:
    """Return pictures (n, 3, h, w) in [-1, 1] as uint8 (n, h, w, 3)."""
    scaled = (pictures.detach().float() + 1).mul(127.5).round().clamp(0, 255)
    images: NDArray[np.uint8] = scaled.to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    return images
