"""Reads a drawn map: which class each pixel is, and a report of the repairs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from landscapes.errors import LandscapesError
from landscapes.palette import CLASSES, NAMES, RIVER, ROAD, UNKNOWN
from landscapes.sketch.colors import find_nearest
from landscapes.sketch.opening import Drawing, open_drawing
from landscapes.sketch.repairs import Lines, fill_gaps, find_lines, settle_edges

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MOST_UNKNOWN = 0.30
# When a map is reduced, a line keeps a cell that it covers by a third as much as an area needs.
LINE_WEIGHT = 3.0


@dataclass(frozen=True)
class Report:
    """The shares of classes that were read, and all repairs.

    ``size`` is (width, height) in the file and ``read_size`` that of the labels; ``shares`` maps
    names of classes to shares of the result. ``unknown`` is the share of pixels of no class, all of
    which were filled; ``edges`` counts blended pixels that follow their neighbors.
    """

    name: str
    size: tuple[int, int]
    read_size: tuple[int, int]
    from_ids: bool
    shares: dict[str, float]
    unknown: float
    edges: int
    lines: tuple[Lines, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as values of JSON."""
        return asdict(self)

    def sentences(self) -> list[str]:
        """Return the report as sentences: shares first, then one for each kind of repair."""
        present = sorted(self.shares.items(), key=lambda each: -each[1])
        told = ", ".join(f"{name} {share:.1%}" for name, share in present if share > 0)
        found = [f"{self.name}: {told}."]
        if self.size != self.read_size:
            sizes = "Reduced from {} x {} to {} x {} pixels."
            found.append(sizes.format(*self.size, *self.read_size))
        if self.unknown:
            found.append(f"{self.unknown:.1%} had no color of the palette: filled from around.")
        if self.edges:
            found.append(f"{self.edges} blended pixels took the class of most pixels around them.")
        for each in self.lines:
            plural = "thin line" if each.count == 1 else "thin lines"
            found.append(f"Read as {each.became}: {each.count} {plural} of {each.drawn_as}.")
        return found


@dataclass(frozen=True)
class Sketch:
    """A map that was read: ``labels`` (uint8, H x W, all of them classes) and its report."""

    labels: NDArray[np.uint8]
    report: Report


def read_sketch(
    source: Path | bytes, name: str | None = None, *, strict: bool = False, lines: bool = True
) -> Sketch:
    """Return the map in a file, given as path or as bytes; messages use ``name``.

    Colors become the nearest class, blended edges and unknown pixels follow their neighbors,
    and with ``lines`` thin strokes of blue and brown become rivers and roads. Files that hold ids
    are taken as they are, apart from unknown pixels. Raise LandscapesError for a file that is not a
    drawing, for more than 30 % unknown, and with ``strict`` for any unknown pixel.
    """
    if name is None:
        name = "the sketch" if isinstance(source, bytes) else str(source)
    drawing = open_drawing(source, name)
    labels, edges = _classify(drawing)
    unknown = float((labels == UNKNOWN).mean())
    _refuse_unknown(name, unknown, 0.0 if strict else MOST_UNKNOWN)
    labels = fill_gaps(labels)
    found: list[Lines] = []
    if lines and drawing.ids is None:
        labels, found = find_lines(labels)
    height, width = labels.shape
    report = Report(
        name=name,
        size=drawing.full_size,
        read_size=(width, height),
        from_ids=drawing.ids is not None,
        shares=shares_of(labels),
        unknown=unknown,
        edges=edges,
        lines=tuple(found),
    )
    return Sketch(labels, report)


def _classify(drawing: Drawing) -> tuple[NDArray[np.uint8], int]:
    """Return the class of each pixel, 255 where unknown, and how many blended ones were settled."""
    if drawing.colors is None:
        return np.array(drawing.ids), 0
    nearest = find_nearest(drawing.colors)
    return settle_edges(np.where(drawing.painted, nearest.labels, UNKNOWN), nearest.certain)


def _refuse_unknown(name: str, unknown: float, most: float) -> None:
    if unknown > most:
        colors = ", ".join(f"{each.name} #{bytes(each.color).hex()}" for each in CLASSES)
        raise LandscapesError(
            f"{unknown:.1%} of {name} has no color of the palette, more than {most:.0%}: paint all "
            f"areas in {colors}."
        )


def shares_of(labels: NDArray[np.uint8]) -> dict[str, float]:
    """Return the share of each class, by name."""
    counts = np.bincount(labels.ravel(), minlength=256)[: len(CLASSES)]
    return dict(zip(NAMES, (counts / labels.size).tolist(), strict=True))


def fit_labels(labels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return ``labels`` as a map of ``size`` x ``size``: each cell has the class that covers most.

    Roads and rivers count three times, so that thin lines outlast the reduction.
    """
    if labels.shape == (size, size):
        return labels
    covered = np.zeros((len(CLASSES), size, size), np.float32)
    for label in np.unique(labels):
        share = Image.fromarray((labels == label).astype(np.float32))
        covered[label] = np.asarray(share.resize((size, size), Image.Resampling.BOX))
    covered[[ROAD, RIVER]] *= LINE_WEIGHT
    fitted: NDArray[np.uint8] = covered.argmax(0).astype(np.uint8)
    return fitted
