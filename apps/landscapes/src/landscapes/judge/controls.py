"""Painters that must lose, and maps disturbed as a hand would draw them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from landscapes.palette import CLASSES
from landscapes.sketch.by_hand import draw_by_hand

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from landscapes.data import Pairs


def mean_colors(pairs: Pairs) -> NDArray[np.uint8]:
    """Return the mean color of each class over all pairs: (9, 3)."""
    sums, counts = np.zeros((len(CLASSES), 3)), np.zeros(len(CLASSES))
    for start in range(0, len(pairs), 64):
        images, labels = pairs.images[start : start + 64], pairs.labels[start : start + 64]
        for each in range(len(CLASSES)):
            pixels = images[labels == each]
            sums[each] += pixels.sum(0, dtype=np.float64)
            counts[each] += len(pixels)
    return np.rint(sums / np.maximum(counts, 1)[:, None]).astype(np.uint8)


def paint_flat(labels: NDArray[np.uint8], colors: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return maps (N, h, w) painted with one color for each class."""
    painted: NDArray[np.uint8] = colors[np.minimum(labels, len(colors) - 1)]
    return painted


def blur(images: NDArray[np.uint8], sigma: float = 2.0) -> NDArray[np.uint8]:
    """Return images (N, h, w, 3) without their detail."""
    blurred: NDArray[np.uint8] = ndimage.gaussian_filter(images, (0, sigma, sigma, 0))
    return blurred


def shuffle_pixels(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images whose pixels have changed places within their class: right colors, no form."""
    drawn = np.random.default_rng(0)
    shuffled: NDArray[np.uint8] = images.copy()
    for number in range(len(images)):
        for each in np.unique(labels[number]):
            where = labels[number] == each
            shuffled[number][where] = drawn.permutation(images[number][where])
    return shuffled


def disturb(labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return maps (N, s, s) as drawn by hand."""
    drawn = np.random.default_rng(1)
    return np.stack([draw_by_hand(each, drawn) for each in labels])
