"""Nearest class of a color, by distance in CIE Lab (CIE 1976), where equal steps look equal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from landscapes.palette import COLORS, UNKNOWN, UNKNOWN_COLOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.floating[Any]]"

# Farther than this from all colors of the palette, a color is unknown.
FARTHEST = 25.0
# Nearer than this, noise of JPEG explains the difference.
CERTAIN = 10.0
_TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def to_lab(colors: NDArray[np.uint8]) -> Floats:
    """Return sRGB ``colors`` (uint8, last axis 3) as L*, a*, b* under the light D65."""
    share = np.asarray(colors, np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    ratio = linear @ _TO_XYZ.T / _WHITE
    bent = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio * (29 / 6) ** 2 / 3 + 4 / 29)
    x, y, z = np.moveaxis(bent, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


@cache
def _palette_in_lab() -> Floats:
    return to_lab(COLORS)


@dataclass(frozen=True)
class Nearest:
    """Classes of colors: ``labels`` (uint8, 255 where unknown) and ``certain`` (bool)."""

    labels: NDArray[np.uint8]
    certain: NDArray[np.bool_]


def find_nearest(colors: NDArray[np.uint8]) -> Nearest:
    """Return the nearest class of each color (uint8, H x W x 3).

    Colors farther than 25 from all classes are unknown. Those within 10 are certain.
    """
    red, green, blue = np.moveaxis(colors.astype(np.uint32), -1, 0)
    distinct, place = np.unique((red << 16) | (green << 8) | blue, return_inverse=True)
    listed = np.stack([distinct >> 16, distinct >> 8, distinct], -1).astype(np.uint8)
    # Not all at once: a photo of a drawing has millions of colors.
    parts = [_look_up(part) for part in np.array_split(listed, len(listed) // 200_000 + 1)]
    labels, distance = (np.concatenate(each) for each in zip(*parts, strict=True))
    place = place.reshape(colors.shape[:2])
    return Nearest(labels[place], (distance <= CERTAIN)[place])


def _look_up(colors: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Floats]:
    lab = to_lab(colors)
    away = np.stack([np.linalg.norm(lab - each, axis=-1) for each in _palette_in_lab()], -1)
    distance = away.min(-1)
    labels = away.argmin(-1).astype(np.uint8)
    labels[(distance > FARTHEST) | (colors == UNKNOWN_COLOR).all(-1)] = UNKNOWN
    return labels, distance
