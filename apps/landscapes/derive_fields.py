"""Derives render/fields.npz: real elevation and textures, as small fields of bytes.

Usage: ``python derive_fields.py MATPLOTLIB_WHEEL SCIKIT_IMAGE_WHEEL``. The file is in the
repository; this says how it was made. NOTICE names the sources and their licenses.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from scipy import ndimage

if TYPE_CHECKING:
    from numpy.typing import NDArray

TARGET = Path(__file__).parent / "src/landscapes/render/fields.npz"
SIDE = 128


def read_elevation(wheel: str) -> NDArray[np.uint8]:
    """Return the mountains in the southwest of the Jacksboro model, scaled to 0..255."""
    with zipfile.ZipFile(wheel) as files:
        content = files.read("matplotlib/mpl-data/sample_data/jacksboro_fault_dem.npz")
    with np.load(io.BytesIO(content)) as stored:
        meters = stored["elevation"][110:344, :222].astype(float)
    share = (meters - meters.min()) / (meters.max() - meters.min())
    elevation: NDArray[np.uint8] = np.round(share * 255).astype(np.uint8)
    return elevation


def read_texture(wheel: str, name: str) -> NDArray[np.uint8]:
    """Return a texture of SIDE x SIDE that repeats without a seam: mean 128, deviation 40."""
    with zipfile.ZipFile(wheel) as files:
        image = Image.open(io.BytesIO(files.read(f"skimage/data/{name}.png")))
        small = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX), float)
    detail = small - ndimage.gaussian_filter(small, 24, mode="reflect")
    # Near its edges the texture is mixed with what is in its middle.
    middle = np.roll(detail, (SIDE // 2, SIDE // 2), (0, 1))
    away = np.clip((np.abs(np.arange(SIDE) - SIDE / 2 + 0.5) / (SIDE / 2) - 0.6) / 0.3, 0, 1)
    weight = np.maximum(away[:, None], away[None, :])
    mixed = (detail * (1 - weight) + middle * weight) / np.hypot(1 - weight, weight)
    even = (mixed - mixed.mean()) / mixed.std()
    texture: NDArray[np.uint8] = np.clip(np.round(128 + 40 * even), 0, 255).astype(np.uint8)
    return texture


def main() -> None:
    """Write the file from two wheels of PyPI."""
    matplotlib, scikit_image = sys.argv[1:]
    np.savez_compressed(
        TARGET,
        elevation=read_elevation(matplotlib),
        grass=read_texture(scikit_image, "grass"),
        gravel=read_texture(scikit_image, "gravel"),
    )


if __name__ == "__main__":
    main()
