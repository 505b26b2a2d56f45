"""Repairs of a drawn map: blended edges, gaps, and thin lines that mean a river or a road."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from landscapes.palette import CLASSES, MOUNTAINS, RIVER, ROAD, SKY, UNKNOWN, WATER

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A doubtful pixel counts this much in a vote. A straight edge of doubtful color keeps its pixels; a
# line of one or two blended pixels between two areas loses them.
DOUBT = 0.7
# A stroke is thin up to this share of the picture's width from its middle to its edge, and a line
# from this multiple of its width on.
THIN, LONG = 0.02, 6.0
SHORTEST = 0.08
_CORNERS_TOO = np.ones((3, 3), bool)


def settle_edges(
    nearest: NDArray[np.uint8], certain: NDArray[np.bool_]
) -> tuple[NDArray[np.uint8], int]:
    """Return ``nearest`` with doubtful pixels settled by those around them, and how many changed.

    Antialiasing and JPEG blend the colors of two areas into those of a third; only pixels of
    uncertain color change, first by the 3 x 3 pixels around them, then by 5 x 5.
    """
    labels, certain = nearest, certain & (nearest != UNKNOWN)
    if certain.all():
        return nearest, 0
    for across in (3, 5):
        voted = _vote(labels, np.where(certain, 1.0, DOUBT).astype(np.float32), across)
        labels = np.where(certain, labels, voted)
    return labels, int((labels != nearest).sum())


def _vote(
    labels: NDArray[np.uint8], weights: NDArray[np.float32], across: int
) -> NDArray[np.uint8]:
    """Return for each pixel the class with most weight in the square around it.

    On a tie a pixel keeps its class. Unknown is a class like the others here: an area of it stays.
    """
    best: NDArray[np.uint8] = labels.copy()
    most = np.zeros(labels.shape, np.float32)
    for label in np.unique(labels):
        own = labels == label
        votes = ndimage.uniform_filter(np.where(own, weights, 0), across, mode="constant")
        wins = (votes > most + 1e-5) | (own & (votes > most - 1e-5) & (votes > 1e-5))
        best[wins], most[wins] = label, votes[wins]
    return best


def fill_gaps(labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return labels whose unknown pixels have the class of the nearest known one."""
    unknown = labels == UNKNOWN
    if not unknown.any() or unknown.all():
        return labels
    nearest = ndimage.distance_transform_edt(unknown, return_distances=False, return_indices=True)
    filled: NDArray[np.uint8] = labels[tuple(nearest)]
    return filled


@dataclass(frozen=True)
class Lines:
    """Strokes that became rivers or roads: names of both classes, number of strokes and pixels."""

    drawn_as: str
    became: str
    count: int
    pixels: int


def find_lines(labels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], list[Lines]]:
    """Return labels in which thin strokes of blue are rivers and thin ones of brown are roads.

    Blue is water, or sky below the horizon; brown is mountains. A stroke that runs into a lake
    ends at the lake.
    """
    result, found = labels.copy(), []
    for label, becomes, mask in (
        (WATER, RIVER, labels == WATER),
        (SKY, RIVER, _sky_below_horizon(labels)),
        (MOUNTAINS, ROAD, labels == MOUNTAINS),
    ):
        strokes, count = _thin_strokes(mask)
        if count:
            result[strokes] = becomes
            names = CLASSES[label].name, CLASSES[becomes].name
            found.append(Lines(*names, count, int(strokes.sum())))
    return result, found


def _sky_below_horizon(labels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return sky that does not touch the top edge and is below the sky that does."""
    parts, _ = ndimage.label(labels == SKY, _CORNERS_TOO)
    at_top = np.unique(parts[0])
    real = np.isin(parts, at_top[at_top > 0])
    if not real.any():
        return np.zeros(labels.shape, bool)
    columns = real.any(0)
    lowest = len(labels) - 1 - np.argmax(real[::-1], axis=0)
    horizon = int(np.median(lowest[columns]))
    below: NDArray[np.bool_] = (labels == SKY) & ~real
    below[:horizon] = False
    return below


def _thin_strokes(mask: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], int]:
    """Return the long thin parts of ``mask``, as a mask, and their number."""
    width = mask.shape[1]
    reach = max(THIN * width, 1.0)
    # Beyond the picture the stroke goes on: its edge is no edge of the stroke.
    depth = ndimage.distance_transform_edt(np.pad(mask, 1, "edge"))[1:-1, 1:-1]
    wide = depth > reach
    if wide.any():
        wide = ndimage.distance_transform_edt(~wide) <= reach + 1
    parts, _ = ndimage.label(mask & ~wide, _CORNERS_TOO)
    # All parts at once: a drawing of noise has a million.
    areas = np.bincount(parts.ravel())
    depths = np.bincount(parts.ravel(), depth.ravel()) / np.maximum(areas, 1)
    # The mean depth of a stroke is a quarter of its width, and half a pixel more.
    across = np.maximum(4 * (depths - 0.5), 1.0)
    long = areas / across >= np.maximum(LONG * across, SHORTEST * width)
    long[0] = False
    return long[parts], int(long.sum())
