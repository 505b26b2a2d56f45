"""Bounds on image files that strangers send, checked before anything is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from landscapes.errors import LandscapesError

if TYPE_CHECKING:
    from pathlib import Path

    from PIL import Image

MOST_BYTES = 20_000_000
MOST_PIXELS = 50_000_000


def read_bounded(path: Path, name: str) -> bytes:
    """Return the bytes of a file, at most one more than ``MOST_BYTES``; messages use ``name``."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise LandscapesError(f"{name} cannot be read: {error.strerror}.") from error


def check_bounds(image: Image.Image, name: str) -> None:
    """Refuse an opened image that has more than ``MOST_PIXELS`` or is animated."""
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise LandscapesError(
            f"{name} has {width} x {height} pixels, more than 50 million: scale it down."
        )
    if getattr(image, "n_frames", 1) > 1:
        raise LandscapesError(f"{name} is animated: save one frame of it.")
