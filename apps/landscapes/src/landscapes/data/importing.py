"""Turns photos and label maps into a finished folder of pairs."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

from landscapes.data.photos import read_square
from landscapes.data.store import (
    SPLITS,
    Description,
    create_arrays,
    divide,
    finish,
    open_arrays,
    writing,
)
from landscapes.data.workers import spread
from landscapes.errors import LandscapesError
from landscapes.pair import Meta

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from landscapes.data.layouts import Files

# Of the training part of a data set, for the judges.
FOR_JUDGES = 0.2
# Pairs that a process converts at a time.
BATCH = 16


def order_by_split(pairs: Sequence[Files]) -> tuple[list[Files], dict[str, tuple[int, int]]]:
    """Return ``pairs`` in the order of their splits, and the index range of each split.

    Training parts become train and judge-train, validation parts val and judge-val; without parts
    all pairs are divided. Which pair goes where follows from its name alone. Raise LandscapesError
    for fewer than 20 pairs, and if a split would be empty.
    """
    ranges = divide(len(pairs))
    shuffled = sorted(pairs, key=lambda files: _digest(files.photo.name))
    train = [files for files in shuffled if files.part == "train"]
    val = [files for files in shuffled if files.part == "val"]
    if not train or not val:
        return shuffled, ranges
    for_judges, half = round(FOR_JUDGES * len(train)), len(val) // 2
    parts = {
        "train": train[for_judges:],
        "val": val[half:],
        "judge-train": train[:for_judges],
        "judge-val": val[:half],
    }
    ranges = {}
    ordered: list[Files] = []
    for name in SPLITS:
        if not parts[name]:
            raise LandscapesError(f"There are too few pairs for the split {name}: add some.")
        ranges[name] = (len(ordered), len(ordered) + len(parts[name]))
        ordered += parts[name]
    return ordered, ranges


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def import_photos(
    folder: Path, pairs: Sequence[Files], table: NDArray[np.uint8] | None, size: int, workers: int
) -> Description:
    """Write ``pairs`` to ``folder`` as squares of ``size`` pixels and return its description."""
    ordered, splits = order_by_split(pairs)
    convert = partial(_convert, folder, table, size)
    with writing(folder):
        create_arrays(folder, len(ordered), size)
        jobs = list(enumerate(ordered))
        batches = [jobs[start : start + BATCH] for start in range(0, len(jobs), BATCH)]
        for _ in spread(convert, batches, workers):
            pass
        metas = [Meta(str(files.photo), index) for index, files in enumerate(ordered)]
        name = f"photos-{size}px-{len(ordered)}-{_name_digest(ordered)}"
        description = Description(name, "photos", size, len(ordered), None, splits)
        finish(folder, description, metas)
    return description


def _name_digest(pairs: Sequence[Files]) -> str:
    return _digest("\n".join(files.photo.name for files in pairs)).hex()[:8]


def _convert(
    folder: Path, table: NDArray[np.uint8] | None, size: int, batch: list[tuple[int, Files]]
) -> None:
    images, labels = open_arrays(folder, "r+")
    for index, files in batch:
        images[index], labels[index] = read_square(files, table, size)
