"""What tests do on the page, by the pointer and the keys, and read from its canvases."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from landscapes.palette import COLORS

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from numpy.typing import NDArray
    from playwright.sync_api import Page

PAINTED_WITHIN_MS = 30_000
NEW_PICTURE = "(before) => landscapes.pictures > before && landscapes.shown === landscapes.changes"


def pixels_of(page: Page, canvas: str) -> NDArray[np.uint8]:
    """Return the pixels of a canvas, (height, width, 4)."""
    width, height, values = page.evaluate(
        """(id) => {
          const canvas = document.getElementById(id);
          const { width, height } = canvas;
          const image = canvas.getContext("2d").getImageData(0, 0, width, height);
          return [width, height, Array.from(image.data)];
        }""",
        canvas,
    )
    return np.array(values, np.uint8).reshape(height, width, 4)


def map_of(page: Page) -> NDArray[np.uint8]:
    """Return the ids on the map as it is shown. Raise AssertionError for a color of no class."""
    pixels = pixels_of(page, "map")
    ids = np.full(pixels.shape[:2], 255, np.uint8)
    for each, color in enumerate(COLORS):
        ids[(pixels[..., :3] == color).all(-1) & (pixels[..., 3] == 255)] = each
    assert (pixels[ids == 255, 3] == 0).all(), "there is a color of no class"
    return ids


def picture_of(page: Page) -> NDArray[np.float64]:
    """Return the picture as it is shown, in 0 to 255."""
    return pixels_of(page, "picture")[..., :3].astype(np.float64)


@contextmanager
def new_picture(page: Page) -> Iterator[None]:
    """Wait after the block for a picture of all that was changed in it."""
    before = page.evaluate("landscapes.pictures")
    yield
    page.wait_for_function(NEW_PICTURE, arg=before, timeout=PAINTED_WITHIN_MS)


def place(page: Page, x: float, y: float) -> tuple[float, float]:
    """Return the point of the window at a share of the map's width and height."""
    box = page.locator("#map").bounding_box()
    assert box is not None
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def drag(page: Page, *points: tuple[float, float]) -> None:
    """Press, move through points in shares of the map, and release."""
    page.mouse.move(*place(page, *points[0]))
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*place(page, *point), steps=8)
    page.mouse.up()


def click(page: Page, x: float, y: float) -> None:
    page.mouse.click(*place(page, x, y))


def start_flat(page: Page, id_above: int, id_below: int) -> None:
    """Make the map one class above the middle and another one below, and wait for its picture."""
    with new_picture(page):
        page.evaluate(
            """([above, below]) => {
              const { size } = landscapes.meta;
              const cells = new Uint8Array(size * size).fill(above);
              landscapes.change(cells.fill(below, (size * size) / 2));
            }""",
            [id_above, id_below],
        )


def run_apart(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine, run in a thread: the browser has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
