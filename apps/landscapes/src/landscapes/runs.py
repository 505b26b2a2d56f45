"""Label maps as runs, [id, length, id, length, ...] row by row, as the page sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from landscapes.errors import LandscapesError
from landscapes.palette import CLASSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def to_runs(labels: NDArray[np.uint8]) -> list[int]:
    """Return the runs of a map of any shape."""
    flat = labels.reshape(-1)
    starts = np.concatenate(([0], np.flatnonzero(np.diff(flat)) + 1))
    lengths = np.diff(np.concatenate((starts, [flat.size])))
    return np.stack((flat[starts], lengths), axis=1).reshape(-1).tolist()


def from_runs(runs: Sequence[int], width: int, height: int) -> NDArray[np.uint8]:
    """Return the map of shape (height, width) in the classes of the palette.

    Raise LandscapesError for an id that is no class, or for lengths that do not add up. Nothing
    larger than the map is made, however long the runs say that they are.
    """
    if len(runs) % 2:
        raise LandscapesError(
            "The runs of the map end in the middle: there is an id without a length."
        )
    ids, lengths = list(runs[::2]), list(runs[1::2])
    for name in ids:
        if not 0 <= name < len(CLASSES):
            raise LandscapesError(
                f"The map holds the id {name}; classes are 0 to {len(CLASSES) - 1}."
            )
    if min(lengths, default=0) < 0 or sum(lengths) != width * height:
        raise LandscapesError(
            f"The runs have {sum(lengths)} cells; a map of {width} x {height} has {width * height}."
        )
    return np.repeat(np.array(ids, np.uint8), lengths).reshape(height, width)
