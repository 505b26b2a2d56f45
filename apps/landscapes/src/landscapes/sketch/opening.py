"""Opens the file of a drawn map: sizes and kind are checked before anything is decoded."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from landscapes.errors import LandscapesError
from landscapes.image_bounds import MOST_BYTES, check_bounds, read_bounded
from landscapes.palette import CLASSES, COLORS, UNKNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
# Larger drawings are reduced: a network paints 64 to 256 pixels.
LARGEST_SIDE = 1024
OPAQUE = 128


@dataclass(frozen=True)
class Drawing:
    """A decoded file: classes as ``ids`` (uint8, H x W), or else ``colors`` (uint8, H x W x 3).

    ``painted`` (bool, H x W) is False where the drawing is transparent; ``full_size`` is (width,
    height) in the file, before it was reduced.
    """

    ids: NDArray[np.uint8] | None
    colors: NDArray[np.uint8] | None
    painted: NDArray[np.bool_]
    full_size: tuple[int, int]


def open_drawing(source: Path | bytes, name: str) -> Drawing:
    """Return the drawing in a file, given as path or as bytes; messages use ``name``.

    An indexed image in the colors of the palette, and 8-bit gray of ids alone (0 to 8, 255), hold
    classes. Raise LandscapesError for a file of another type, one that is truncated, animated, of
    16-bit gray, or larger than 20 MB or 50 million pixels.
    """
    content = read_bounded(source, name) if isinstance(source, Path) else source
    if len(content) > MOST_BYTES:
        raise LandscapesError(f"{name} has more than 20 MB: save it smaller, as PNG.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged metadata, and of sizes, checked below
            image = _decode(content, name)
            return _sort_out(image)
    except UnidentifiedImageError as error:
        raise LandscapesError(
            f"{name} is not a PNG, JPEG, WebP, BMP or GIF image: save the drawing as PNG."
        ) from error
    except Image.DecompressionBombError as error:
        raise LandscapesError(f"{name} has more than 50 million pixels: scale it down.") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise LandscapesError(
            f"{name} is damaged ({error}): save the drawing again as PNG."
        ) from error


def _decode(content: bytes, name: str) -> Image.Image:
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        check_bounds(image, name)
        if image.mode.startswith(("I", "F")):
            raise LandscapesError(f"{name} has 16 or 32 bits a pixel of gray: save it with 8 bits.")
        image.load()
        return ImageOps.exif_transpose(image)


def _sort_out(image: Image.Image) -> Drawing:
    full_size = image.size
    if max(full_size) > LARGEST_SIDE:
        scale = LARGEST_SIDE / max(full_size)
        width, height = (max(1, round(side * scale)) for side in full_size)
        image = image.resize((width, height), Image.Resampling.NEAREST)
    ids = _ids_of(image)
    if ids is not None:
        return Drawing(ids, None, np.ones(ids.shape, bool), full_size)
    pixels = np.asarray(image.convert("RGBA"))
    painted = pixels[..., 3] >= OPAQUE
    return Drawing(None, np.ascontiguousarray(pixels[..., :3]), painted, full_size)


def _ids_of(image: Image.Image) -> NDArray[np.uint8] | None:
    """Return the pixels if they are classes, else None."""
    if image.mode not in ("L", "P"):
        return None
    values = np.asarray(image)
    used = np.unique(values)
    classes = used[used != UNKNOWN]
    if len(classes) == 0 or classes[-1] >= len(CLASSES):
        return None
    if image.mode == "P":
        table = np.array(image.getpalette("RGB") or [], np.uint8).reshape(-1, 3)
        if "transparency" in image.info or len(table) <= classes[-1]:
            return None
        if not np.array_equal(table[classes], COLORS[classes]):
            return None
    return values
