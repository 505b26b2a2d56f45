"""A page that shows a map, the photo that gave the style, and the pictures, in one file."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from landscapes.errors import LandscapesError
from landscapes.palette import paint_labels
from landscapes.photos import crop_square

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: auto; padding: 16px; }}
main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); gap: 16px; }}
figure {{ margin: 0; }}
img {{ width: 100%; border-radius: 6px; display: block; }}
.map {{ image-rendering: pixelated; }}
footer {{ margin-top: 20px; opacity: .7; }}
</style>
<h1>{title}</h1>
<main>
{figures}
</main>
<footer>{about}</footer>
</html>
"""


@dataclass(frozen=True)
class Shown:
    """Everything on a page; ``photo`` is None if no photo gave the style."""

    title: str
    labels: NDArray[np.uint8]
    photo: NDArray[np.uint8] | None
    pictures: Sequence[NDArray[np.uint8]]
    about: str


def write_image(path: Path, pixels: NDArray[np.uint8]) -> None:
    """Write an image. Raise LandscapesError if that is impossible."""
    try:
        Image.fromarray(pixels).save(path)
    except OSError as error:
        raise LandscapesError(f"{path} cannot be written: {error.strerror}.") from error


def write_page(folder: Path, shown: Shown) -> None:
    """Write ``index.html``, which holds its images, to a folder."""
    figures = [_figure("map", paint_labels(shown.labels), "map")]
    if shown.photo is not None:
        figures.append(_figure("style", crop_square(shown.photo, 256), "photo"))
    figures += [_figure(f"{each}.png", image, "") for each, image in enumerate(shown.pictures)]
    page = PAGE.format(
        title=html.escape(shown.title), about=html.escape(shown.about), figures="\n".join(figures)
    )
    try:
        (folder / "index.html").write_text(page, "utf-8")
    except OSError as error:
        raise LandscapesError(
            f"{folder}/index.html cannot be written: {error.strerror}."
        ) from error


def _figure(caption: str, pixels: NDArray[np.uint8], kind: str) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return (
        f'<figure><img class="{kind}" alt="{caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
