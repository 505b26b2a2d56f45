"""Reads photos that strangers send: sizes are checked before anything is decoded."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from landscapes.errors import LandscapesError
from landscapes.image_bounds import MOST_BYTES, check_bounds, read_bounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMATS = ("PNG", "JPEG", "WEBP")


def read_photo(source: Path | bytes, name: str | None = None) -> NDArray[np.uint8]:
    """Return the pixels of an image as uint8 of shape (height, width, 3), upright, on white.

    ``source`` is a path or the bytes of a file; ``name`` is what messages call it. Transparency is
    laid on white, and 16-bit gray is scaled to 8 bits. Raise LandscapesError for what is no PNG,
    JPEG or WebP, is animated, truncated, or larger than 20 MB or 50 million pixels.
    """
    if name is None:
        name = str(source) if isinstance(source, Path) else "the image"
    content = read_bounded(source, name) if isinstance(source, Path) else source
    if len(content) > MOST_BYTES:
        raise LandscapesError(
            f"{name} has {len(content) / 1e6:.0f} MB, more than 20: scale it down."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, and of sizes, checked below
            return _decode(content, name)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise LandscapesError(
            f"{name} is no image that can be read ({error}): use a whole PNG, JPEG or WebP file."
        ) from error


def _decode(content: bytes, name: str) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        check_bounds(image, name)
        image.load()
        upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):
        upright = Image.fromarray((np.asarray(upright).clip(0, 65535) // 257).astype(np.uint8))
    with_alpha = upright.convert("RGBA")
    white = Image.new("RGBA", with_alpha.size, "white")
    return np.asarray(Image.alpha_composite(white, with_alpha).convert("RGB"))


def crop_square(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return the central square of a photo, scaled to (size, size, 3)."""
    height, width = pixels.shape[:2]
    side = min(height, width)
    left, top = (width - side) // 2, (height - side) // 2
    square = Image.fromarray(pixels[top : top + side, left : left + side])
    return np.asarray(square.resize((size, size), Image.Resampling.LANCZOS))
