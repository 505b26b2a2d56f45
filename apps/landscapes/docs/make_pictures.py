"""Make the pictures of README.md again: ``python docs/make_pictures.py [CHECKPOINT]``.

Writes ``map-style-result.jpg``, ``hours.jpg``, ``styles.jpg`` and, where there is Chromium,
``page.png`` and ``page-phone.png``, each of at most 300 kB, beside this file.
"""

from __future__ import annotations

import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw, ImageFont

from landscapes.open_studio import open_studio
from landscapes.pair import HOURS
from landscapes.palette import paint_labels
from landscapes.render import render_pair
from landscapes.styles import SEED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from landscapes.studio import Studio

FOLDER = Path(__file__).parent
TILE = 192
GAP = 6
LABEL = 20
MOST_BYTES = 300_000
# Indices of pairs that no checkpoint was trained on: the map of one, the picture of another.
ROWS = ((23, 9), (34, 20), (29, 31), (11, 0))


def main(checkpoint: Path | None) -> None:
    studio = open_studio(checkpoint)
    write_jpeg(map_style_result(studio), "map-style-result.jpg")
    write_jpeg(hours(studio), "hours.jpg")
    write_jpeg(sheet(studio), "styles.jpg")
    browser = shutil.which("chromium")
    if browser is None:
        print("There is no Chromium (make system): the pictures of the page stay as they are.")
    else:
        photograph_page(studio, browser)


def map_style_result(studio: Studio) -> Image.Image:
    """Return rows of map, style picture, the network's picture, and the renderer's for the map."""
    size = studio.network.size
    rows = []
    for labels_of, style_of in ROWS:
        pair, style = render_pair(SEED, labels_of, size), render_pair(SEED, style_of, size)
        painted = studio.paint(pair.labels, studio.encode(style.image))
        rows.append([paint_labels(pair.labels), style.image, painted, pair.image])
    titles = ("map", "style", "painted by the network", "rendered (not seen)")
    return grid_of(rows, titles, sharp=(0,))


def hours(studio: Studio) -> Image.Image:
    """Return maps and what the network paints of them at the five hours."""
    rows = []
    for scene, biome in zip(studio.scenes, ("summer", "autumn", "desert"), strict=False):
        pictures = [studio.paint(scene.labels, studio.styles[f"{biome}-{hour}"]) for hour in HOURS]
        rows.append([paint_labels(scene.labels), *pictures])
    return grid_of(rows, ("map", *HOURS), sharp=(0,))


def sheet(studio: Studio) -> Image.Image:
    """Return one map in all styles."""
    labels = studio.scenes[1].labels
    rows = [
        [studio.paint(labels, studio.styles[f"{biome}-{hour}"]) for hour in HOURS]
        for biome in studio.biomes
    ]
    return grid_of(rows, tuple(HOURS), sharp=())


def grid_of(
    rows: Sequence[Sequence[NDArray[np.uint8]]], titles: Sequence[str], sharp: tuple[int, ...]
) -> Image.Image:
    """Return pictures in rows below their titles; columns in ``sharp`` keep the edges of cells."""
    step = TILE + GAP
    image = Image.new("RGB", (step * len(titles) - GAP, LABEL + step * len(rows) - GAP), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(14)
    for column, title in enumerate(titles):
        draw.text((column * step + 2, 1), title, "black", font)
        how = Image.Resampling.NEAREST if column in sharp else Image.Resampling.BICUBIC
        for row, pictures in enumerate(rows):
            tile = Image.fromarray(pictures[column]).resize((TILE, TILE), how)
            image.paste(tile, (column * step, LABEL + row * step))
    return image


def write_jpeg(image: Image.Image, name: str) -> None:
    """Write an image with the best quality that is not too large."""
    for quality in (92, 88, 84, 78, 70, 60):
        image.save(FOLDER / name, quality=quality, optimize=True)
        if (FOLDER / name).stat().st_size <= MOST_BYTES:
            break
    print(f"{name}: {image.width} x {image.height}, {(FOLDER / name).stat().st_size // 1000} kB")


def photograph_page(studio: Studio, browser: str) -> None:
    """Write what the page looks like after a river was drawn, on a screen and on a phone."""
    import uvicorn
    from playwright.sync_api import sync_playwright

    from landscapes.serving.app import build_app

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(build_app(studio), log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            for name, width, height in (("page.png", 1280, 860), ("page-phone.png", 390, 1240)):
                page = chromium.new_page(viewport={"width": width, "height": height})
                page.goto(address)
                page.wait_for_selector("#picture[data-pictures]")
                page.screenshot(path=FOLDER / name)
                shrink(FOLDER / name)
            chromium.close()
    finally:
        server.should_exit = True
        thread.join(30)


def shrink(path: Path) -> None:
    """Reduce a screenshot to 256 colors, which it hardly shows."""
    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(256, dither=Image.Dither.FLOYDSTEINBERG)
    reduced.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
