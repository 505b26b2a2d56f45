"""Mapping files: which of the nine classes each gray value of another data set is."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from landscapes.errors import LandscapesError
from landscapes.palette import NAMES, UNKNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray


def shipped_maps() -> list[str]:
    """Return the names of the mapping files of this package."""
    folder = resources.files(__package__).joinpath("maps")
    return sorted(file.name.removesuffix(".json") for file in folder.iterdir())


def load_map(name_or_path: str) -> NDArray[np.uint8]:
    """Return the class of each gray value: uint8 of shape (256,), 255 where unknown.

    A mapping file is JSON: ``values`` maps gray values to names of classes or "unknown", ``rest``
    is the class of all others, by default unknown. Raise LandscapesError for a file that is
    something else, and for unknown names of classes.
    """
    if name_or_path in shipped_maps():
        text = resources.files(__package__).joinpath(f"maps/{name_or_path}.json").read_text("utf-8")
    else:
        try:
            text = Path(name_or_path).read_text("utf-8")
        except (OSError, ValueError) as error:
            raise LandscapesError(
                f"The mapping file {name_or_path} cannot be read ({error}): give a path, or one of "
                f"{', '.join(shipped_maps())}."
            ) from error
    try:
        return _build_table(json.loads(text))
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise LandscapesError(
            f"The mapping file {name_or_path} cannot be understood ({error}): it needs "
            '{"values": {"3": "sky", ...}, "rest": "unknown"}.'
        ) from error


def _build_table(stored: dict[str, Any]) -> NDArray[np.uint8]:
    ids = {name: index for index, name in enumerate(NAMES)} | {"unknown": UNKNOWN}
    table = np.full(256, ids[stored.get("rest", "unknown")], np.uint8)
    for value, name in stored["values"].items():
        if not 0 <= int(value) < len(table):
            raise ValueError(f"{value} is no gray value")
        table[int(value)] = ids[name]
    return table
