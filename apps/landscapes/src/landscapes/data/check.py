"""Checks a data set before anything is trained on it, in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from landscapes.data.photos import Finding, inspect
from landscapes.data.workers import spread
from landscapes.errors import LandscapesError
from landscapes.palette import CLASSES, NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from landscapes.data.layouts import Files, Found
    from landscapes.data.pairs import Pairs

# Names that are printed of a longer list.
SHOWN = 5
# Pairs that a process reads before it reports.
BATCH = 16
_TITLES = {
    "unreadable": "cannot be read",
    "ids": "have ids beyond the classes",
    "sizes": "have labels of another shape than the photo",
    "unknown": "are more than 30% unknown",
}


@dataclass(frozen=True)
class Checked:
    """The result of a check of photos: the files, good pairs, and problems of the others."""

    found: Found
    good: tuple[Files, ...]
    problems: tuple[Finding, ...]
    counts: NDArray[np.int64]

    def sentences(self) -> list[str]:
        """Return the findings: number of pairs, shares of classes, and each kind of problem."""
        total = len(self.found.pairs)
        lines = [f"Layout {self.found.layout}: {total} pairs, of which {len(self.good)} are good."]
        lines += _name_some(self.found.photos_alone, "photos have no label map")
        lines += _name_some(self.found.labels_alone, "label maps have no photo")
        for kind, title in _TITLES.items():
            these = [each.problem for each in self.problems if each.kind == kind]
            lines += _name_some(these, f"pairs {title}")
        return lines + describe_shares(self.counts)


def _name_some(items: Sequence[object], title: str) -> list[str]:
    if not items:
        return []
    more = [f"  and {len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return [f"{len(items)} {title}:", *(f"  {item}" for item in items[:SHOWN]), *more]


def describe_shares(counts: NDArray[np.int64]) -> list[str]:
    """Return a line of the share of each class, and one that names those that are absent."""
    total = max(int(counts.sum()), 1)
    shares = ", ".join(
        f"{name} {count / total:.1%}"
        for name, count in zip([*NAMES, "unknown"], counts.tolist(), strict=True)
    )
    absent = [name for name, count in zip(NAMES, counts, strict=False) if count == 0]
    lines = [f"Shares: {shares}."]
    if absent:
        lines.append(f"No pixel is {' or '.join(absent)}: a network will not learn to paint them.")
    return lines


def check_photos(found: Found, table: NDArray[np.uint8] | None, workers: int) -> Checked:
    """Read all pairs of ``found`` and return the good ones and the problems of the others."""
    if not found.pairs:
        raise LandscapesError(
            f"No photo has a label map of its name: {len(found.photos_alone)} photos and "
            f"{len(found.labels_alone)} label maps are alone. Give both the same name."
        )
    batches = [found.pairs[start : start + BATCH] for start in range(0, len(found.pairs), BATCH)]
    look = partial(_inspect_all, table=table)
    findings = [finding for batch in spread(look, batches, workers) for finding in batch]
    good = [each for each in findings if not each.kind]
    counts = np.sum([each.counts for each in good], axis=0) if good else np.zeros(10, np.int64)
    problems = tuple(each for each in findings if each.kind)
    return Checked(found, tuple(each.files for each in good), problems, counts)


def _inspect_all(batch: Sequence[Files], table: NDArray[np.uint8] | None) -> list[Finding]:
    return [inspect(files, table) for files in batch]


def check_pairs(splits: dict[str, Pairs]) -> list[str]:
    """Return sentences about a finished folder. Raise LandscapesError for labels of no class."""
    lines, counts = [], np.zeros(len(CLASSES) + 1, np.int64)
    for name, pairs in splits.items():
        lines.append(f"{name}: {len(pairs)} pairs of {pairs.size} pixels.")
        for start in range(0, len(pairs), 256):
            part = np.bincount(pairs.labels[start : start + 256].ravel(), minlength=256)
            if part[len(CLASSES) :].any():
                wrong = len(CLASSES) + int(np.flatnonzero(part[len(CLASSES) :])[0])
                raise LandscapesError(
                    f"{name}, pairs {start} to {start + 255}: {part[wrong]} pixels have the id "
                    f"{wrong}, beyond the classes. Make the data set again."
                )
            counts[:-1] += part[: len(CLASSES)]
    return lines + describe_shares(counts)
