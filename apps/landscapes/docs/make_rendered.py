"""Makes docs/rendered.jpg: rendered pairs of each biome, from midnight to midnight.

Usage: ``python docs/make_rendered.py`` in the folder of the app.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from landscapes.pair import BIOMES
from landscapes.palette import paint_labels
from landscapes.render import render_pair

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from landscapes.pair import Pair

SEED, DRAWN, SIZE, COLUMNS = 1, 200, 128, 6


def make_rows(pairs: list[Pair]) -> NDArray[np.uint8]:
    """Return a row of pictures above a row of maps: COLUMNS of ``pairs``, by their hour."""
    by_hour = sorted(pairs, key=lambda pair: pair.meta.hour or 0.0)
    chosen = [by_hour[round(each)] for each in np.linspace(0, len(by_hour) - 1, COLUMNS)]
    pictures = np.concatenate([pair.image for pair in chosen], axis=1)
    maps = np.concatenate([paint_labels(pair.labels) for pair in chosen], axis=1)
    return np.concatenate([pictures, maps])


def main() -> None:
    """Write the picture beside this file."""
    pairs = [render_pair(SEED, index, SIZE) for index in range(DRAWN)]
    rows = [make_rows([pair for pair in pairs if pair.meta.biome == biome]) for biome in BIOMES]
    path = Path(__file__).with_name("rendered.jpg")
    Image.fromarray(np.concatenate(rows)).save(path, quality=82, subsampling=0)


if __name__ == "__main__":
    main()
