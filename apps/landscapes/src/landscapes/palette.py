"""The nine classes, their ids and the colors that people draw them in, read from palette.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class LabelClass:
    """One class: ``id`` in label maps, ``name``, ``color`` (red, green, blue), drawing ``tool``."""

    id: int
    name: str
    color: tuple[int, int, int]
    tool: str


def _load() -> tuple[int, tuple[LabelClass, ...]]:
    text = resources.files("landscapes").joinpath("palette.json").read_text("utf-8")
    stored: dict[str, Any] = json.loads(text)
    classes = tuple(
        LabelClass(entry["id"], entry["name"], _parse_hex(entry["hex"]), entry["tool"])
        for entry in stored["classes"]
    )
    return stored["unknown"], classes


def _parse_hex(text: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(text.removeprefix("#"))
    return red, green, blue


UNKNOWN, CLASSES = _load()
NAMES = tuple(each.name for each in CLASSES)
SKY, WATER, TREES, GRASS, STONES, MOUNTAINS, SNOW, ROAD, RIVER = range(len(CLASSES))
# One row a class: uint8 of shape (9, 3).
COLORS: NDArray[np.uint8] = np.array([each.color for each in CLASSES], np.uint8)
UNKNOWN_COLOR = (255, 0, 255)


def paint_labels(labels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return ``labels`` (uint8, any shape) as colors of the palette: uint8 with a last axis of 3.

    Ids that are no class, such as 255 for unknown, become magenta.
    """
    table = np.empty((256, 3), np.uint8)
    table[:] = UNKNOWN_COLOR
    table[: len(COLORS)] = COLORS
    return table[labels]
