"""Reads a photo and its label map as one pair, or names their problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from landscapes.data.store import open_arrays
from landscapes.errors import LandscapesError, naming_failure
from landscapes.palette import CLASSES, UNKNOWN
from landscapes.photos import crop_square, read_photo
from landscapes.sketch import read_sketch
from landscapes.sketch.repairs import fill_gaps

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from landscapes.data.layouts import Files

MOST_UNKNOWN = 0.30
# Sides of photo and labels may differ by this share in their ratio, for they are scaled.
LOOSEST_FIT = 0.02


@dataclass(frozen=True)
class Finding:
    """The result of reading one pair: pixels by class (9 counts, then unknown), or a problem.

    ``kind`` of a problem is unreadable, ids, sizes or unknown; empty if there is none.
    """

    files: Files
    counts: NDArray[np.int64]
    kind: str
    problem: str


def inspect(files: Files, table: NDArray[np.uint8] | None) -> Finding:
    """Return the contents of a pair; ``table`` maps gray values to classes, if they are others."""
    counts = np.zeros(len(CLASSES) + 1, np.int64)
    try:
        labels, photo = read_labels(files.labels, table), read_photo(files.photo)
    except IdsError as error:
        return Finding(files, counts, "ids", str(error))
    except LandscapesError as error:
        return Finding(files, counts, "unreadable", str(error))
    counts[:-1] = np.bincount(labels.ravel(), minlength=256)[: len(CLASSES)]
    counts[-1] = (labels == UNKNOWN).sum()
    (height, width), (tall, wide) = labels.shape, photo.shape[:2]
    if abs(width / height / (wide / tall) - 1) > LOOSEST_FIT:
        problem = f"{files.labels} is {width} x {height}, and {files.photo.name} {wide} x {tall}."
        return Finding(files, counts, "sizes", problem)
    if counts[-1] > MOST_UNKNOWN * labels.size:
        share = counts[-1] / labels.size
        return Finding(files, counts, "unknown", f"{files.labels} is {share:.0%} unknown.")
    return Finding(files, counts, "", "")


class IdsError(LandscapesError):
    """A label map has gray values beyond the classes."""


def read_labels(path: Path, table: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Return a label map as classes, 255 where unknown, uint8 of shape (height, width).

    Gray or indexed files hold ids, which ``table`` maps to classes; colors are read as those of the
    palette. Raise IdsError for ids beyond the classes, naming each with its number of pixels.
    """
    values = _read_values(path)
    if values is None:
        if table is not None:
            raise LandscapesError(f"{path} holds colors, and a mapping file needs gray values.")
        return read_sketch(path, lines=False).labels
    if table is not None:
        mapped: NDArray[np.uint8] = table[values]
        return mapped
    ids, counts = np.unique(values, return_counts=True)
    wrong = [
        f"{value} ({count} pixels)"
        for value, count in zip(ids.tolist(), counts.tolist(), strict=True)
        if value >= len(CLASSES) and value != UNKNOWN
    ]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise IdsError(
            f"{path} has ids beyond the classes: {', '.join(wrong[:5])}{more}. Classes are 0 to "
            f"{len(CLASSES) - 1}, unknown is {UNKNOWN}; --map names a file for other ids."
        )
    return values


def _read_values(path: Path) -> NDArray[np.uint8] | None:
    """Return the gray values or palette indices of a PNG file, None if it holds colors."""
    try:
        with Image.open(path, formats=("PNG",)) as image:
            if image.width * image.height > 50_000_000:
                raise LandscapesError(f"{path} has more than 50 million pixels: scale it down.")
            if image.mode not in ("L", "P", "1") and not image.mode.startswith("I"):
                return None
            values = np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise LandscapesError(f"{path} cannot be read as a label map ({error}).") from error
    if values.max(initial=0) > 255:
        raise IdsError(f"{path} has 16 bits and ids up to {values.max()}: the highest is 255.")
    return values.astype(np.uint8)


def read_square(
    files: Files, table: NDArray[np.uint8] | None, size: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the central square of a pair: photo (size, size, 3) and labels (size, size).

    Unknown pixels take the class of the nearest known one.
    """
    photo = crop_square(read_photo(files.photo), size)
    labels = fill_gaps(read_labels(files.labels, table))
    height, width = labels.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = Image.fromarray(labels[top : top + side, left : left + side])
    return photo, np.asarray(square.resize((size, size), Image.Resampling.NEAREST))


def write_folders(folder: Path) -> None:
    """Write the pairs of a finished ``folder`` as PNG files to its subfolders images and labels."""
    images, labels = open_arrays(folder, "r")
    for name, arrays in (("images", images), ("labels", labels)):
        with naming_failure(folder / name):
            (folder / name).mkdir(exist_ok=True)
            for index, array in enumerate(arrays):
                Image.fromarray(np.array(array)).save(folder / name / f"{index:06d}.png")
