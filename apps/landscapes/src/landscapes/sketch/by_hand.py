"""Draws label maps as a hand would: with wavy borders and without detail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from landscapes.palette import CLASSES

if TYPE_CHECKING:
    from numpy.typing import NDArray


def draw_by_hand(labels: NDArray[np.uint8], draw: np.random.Generator) -> NDArray[np.uint8]:
    """Return a square map (s, s) whose borders are moved by about s / 40, and smoothed.

    Ids that are no class become the first class.
    """
    side = len(labels)
    rows, columns = np.mgrid[:side, :side]
    waves = ndimage.gaussian_filter(draw.standard_normal((2, side, side)), (0, 5, 5))
    waves *= side / 40 / waves.std()
    places = np.rint(np.clip((rows + waves[0], columns + waves[1]), 0, side - 1)).astype(int)
    return _majority(labels[places[0], places[1]])


def _majority(labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    planes = [(labels == each).astype(np.float32) for each in range(len(CLASSES))]
    counts = np.stack([ndimage.uniform_filter(each, 3) for each in planes])
    most: NDArray[np.uint8] = counts.argmax(0).astype(np.uint8)
    return most
