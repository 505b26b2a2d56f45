"""Derives render/skies.npz: real skies, as small panoramas of bytes.

Usage: ``python derive_skies.py PMNDRS_ASSETS_TGZ``, the file that ``npm pack @pmndrs/assets``
fetches, with the package OpenEXR installed. The result is in the repository; this says how it was
made. NOTICE names the source and its license.
"""

from __future__ import annotations

import base64
import re
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import OpenEXR
from scipy import ndimage

if TYPE_CHECKING:
    from numpy.typing import NDArray

TARGET = Path(__file__).parent / "src/landscapes/render/skies.npz"
# By name: the degrees up to which land or buildings reach, and the first and last column of 512
# between which they do not reach higher. Columns past 512 begin again at 0.
CLEAR = {
    "dawn": (10, 0, 511),
    "sunrise": (19, 480, 912),
    "sky": (0, 0, 511),
    "park": (13, 134, 620),
    "sunset": (12, 340, 490),
    "venice": (4, 225, 480),
    "night": (8, 118, 264),
}
DEGREES = 40  # of height that are kept
DEGREES_A_ROW = 180 / 256


def read_panorama(archive: tarfile.TarFile, name: str) -> NDArray[np.float64]:
    """Return linear light, 256 x 512 x 3, zenith in row 0."""
    member = archive.extractfile(f"package/hdri/{name}.exr.js")
    assert member is not None
    found = re.search(rb"base64,([A-Za-z0-9+/=]+)", member.read())
    assert found is not None
    with tempfile.NamedTemporaryFile(suffix=".exr") as file:
        file.write(base64.b64decode(found[1]))
        file.flush()
        with OpenEXR.File(file.name) as opened:
            pixels = opened.channels()["RGB"].pixels.astype(np.float64)
    # Compression left wrong values around the sun and bright stars.
    bright = np.nan_to_num(pixels, nan=0, posinf=0, neginf=0).clip(0)
    bad = (bright <= 0.2 * bright.max(2, keepdims=True)).any(2)
    around = ndimage.maximum_filter(bright, (7, 7, 1))
    return np.where(bad[..., None], around, bright)


def cut_sky(pixels: NDArray[np.float64], name: str) -> NDArray[np.uint8]:
    """Return the clear sky from its lowest row up, exposed to bytes as the renderer exposes."""
    above, first, last = CLEAR[name]
    rows = 127 - np.round((above + np.arange(0, DEGREES, DEGREES_A_ROW)) / DEGREES_A_ROW)
    sky = pixels[rows.astype(int)][:, np.arange(first, last + 1) % 512]
    share = 1 - np.exp(-sky / np.median(sky.mean(2)))
    exposed: NDArray[np.uint8] = np.round(254 * share ** (1 / 2.2)).astype(np.uint8)
    return exposed


def main() -> None:
    """Write the file from an archive of npm."""
    with tarfile.open(sys.argv[1]) as archive:
        skies = {name: cut_sky(read_panorama(archive, name), name) for name in CLEAR}
    np.savez_compressed(TARGET, **skies)


if __name__ == "__main__":
    main()
