"""Opens finished folders of pairs for training: arrays on disk, divided into splits."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import numpy as np

from landscapes.data.store import (
    SPLITS,
    Description,
    describe,
    fingerprint,
    open_arrays,
    read_metas,
)
from landscapes.errors import LandscapesError
from landscapes.pair import RENDERER, RENDERER_WITH_SKIES, Meta, Pair

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Pairs(Sequence[Pair]):
    """A split of a finished folder: arrays mapped into memory, never copied as a whole.

    ``images`` is uint8 (N, S, S, 3), ``labels`` uint8 (N, S, S), ``metas`` a Meta of each;
    ``size`` is S. ``fingerprint`` differs between data sets: ranks compare it before they train.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.uint8],
        metas: Sequence[Meta],
        fingerprint: str,
    ) -> None:
        self.images = images
        self.labels = labels
        self.metas = metas
        self.fingerprint = fingerprint
        self.size = int(labels.shape[1])

    def __len__(self) -> int:
        return len(self.labels)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> Pairs: ...
    def __getitem__(self, index: int | slice) -> Pair | Pairs:
        if isinstance(index, slice):
            part = self.images[index], self.labels[index], self.metas[index]
            return Pairs(*part, self.fingerprint)
        return Pair(np.array(self.images[index]), np.array(self.labels[index]), self.metas[index])

    def batch(self, indices: Sequence[int]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return copies of images (n, S, S, 3) and labels (n, S, S) of ``indices``."""
        chosen = np.asarray(indices, np.int64)
        return self.images[chosen], self.labels[chosen]


def open_pairs(folder: Path | str, split: str) -> Pairs:
    """Return the pairs of one split of ``folder``: train, val, judge-train or judge-val.

    Refuse an unknown split, a folder that is not finished, and arrays that do not fit their
    description. Warn of pairs that another version of the renderer made.
    """
    folder = Path(folder)
    if split not in SPLITS:
        raise LandscapesError(f"There is no split {split!r}: name one of {', '.join(SPLITS)}.")
    description = describe(folder)
    images, labels = open_arrays(folder, "r")
    if description.source not in (RENDERER, RENDERER_WITH_SKIES, "photos"):
        warnings.warn(
            f"{folder} was rendered by {description.source}, and this version renders {RENDERER}: "
            "its pairs cannot be made again. To train what others can repeat, render a new folder.",
            stacklevel=2,
        )
    metas = read_metas(folder)
    _compare(folder, description, images, labels, len(metas))
    start, end = description.splits[split]
    mark = fingerprint(description, labels)
    return Pairs(images[start:end], labels[start:end], metas[start:end], mark)


def _compare(
    folder: Path,
    description: Description,
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    lines: int,
) -> None:
    shape = (description.count, description.size, description.size)
    found = {"images.npy": images.shape[:3], "labels.npy": labels.shape}
    for name, each in found.items():
        if each != shape:
            raise LandscapesError(
                f"{folder / name} has the shape {each}, and data.json says {shape}: make the data "
                "set again."
            )
    if images.shape[3:] != (3,) or images.dtype != np.uint8 or labels.dtype != np.uint8:
        raise LandscapesError(f"{folder} holds no pictures of 3 bytes a pixel: make it again.")
    if lines != description.count or set(description.splits) != set(SPLITS):
        raise LandscapesError(
            f"{folder} has {lines} lines in meta.jsonl for {description.count} pairs, or lacks a "
            "split: make the data set again."
        )
