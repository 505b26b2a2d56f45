"""``landscapes synth``: pictures of a drawn map, in a style by name, of a photo, or by chance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from landscapes.errors import LandscapesError
from landscapes.palette import paint_labels
from landscapes.photos import read_photo
from landscapes.sheet_page import Shown, write_image, write_page
from landscapes.sketch import fit_labels, read_sketch

if TYPE_CHECKING:
    import argparse

    from numpy.typing import NDArray

    from landscapes.studio import Studio

MOST = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", type=Path, help="a run's folder or its generator; default: the shipped one"
    )
    parser.add_argument("--labels", type=Path, required=True, help="the drawn map: PNG, JPEG, ...")
    style = parser.add_mutually_exclusive_group()
    style.add_argument("--style", type=Path, metavar="PHOTO", help="the style of this photo")
    style.add_argument(
        "--style-id", metavar="NAME", help="a biome and an hour, such as winter-dawn"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of chance: random styles without --style and --style-id, variations with them",
    )
    parser.add_argument("--n", type=int, default=1, help=f"how many pictures, 1 to {MOST}")
    parser.add_argument(
        "--variation",
        type=float,
        default=0.5,
        help="how far pictures after the first are from that style, in standard deviations",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder of the pictures")
    parser.add_argument(
        "--sheet",
        action="store_true",
        help="write sheet.png, the map in all styles that have names",
    )
    parser.add_argument("--html", action="store_true", help="write index.html, which shows all")
    parser.add_argument(
        "--strict", action="store_true", help="refuse a map with any color of no class"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write ``0.png``, ``1.png``, ... and the map as it was read, ``map.png``."""
    if not 1 <= arguments.n <= MOST:
        raise LandscapesError(f"--n {arguments.n}: ask for 1 to {MOST} pictures.")
    if arguments.seed < 0:
        raise LandscapesError(f"--seed {arguments.seed}: a seed is 0 or more.")
    if not 0 <= arguments.variation <= 10:
        raise LandscapesError(f"--variation {arguments.variation}: name a number from 0 to 10.")
    sketch = read_sketch(arguments.labels, strict=arguments.strict)
    photo = None if arguments.style is None else read_photo(arguments.style)
    for sentence in sketch.report.sentences():
        print(sentence)
    # What takes time to load comes after what may be refused.
    from landscapes.open_studio import open_studio

    studio = open_studio(arguments.checkpoint)
    labels = fit_labels(sketch.labels, studio.network.size)
    pictures = [studio.paint(labels, style) for style in _styles(arguments, photo, studio)]
    _write(arguments.out, labels, pictures)
    if arguments.sheet:
        write_image(arguments.out / "sheet.png", studio.paint_sheet(labels))
    if arguments.html:
        shown = Shown(_title(arguments), labels, photo, pictures, studio.about)
        write_page(arguments.out, shown)
    print(f"{len(pictures)} of {studio.network.size} x {studio.network.size} in {arguments.out}")
    return 0


def _styles(
    arguments: argparse.Namespace, photo: NDArray[np.uint8] | None, studio: Studio
) -> list[NDArray[np.float32]]:
    """Return one style for each picture: the one asked for, then variations of it."""
    if photo is not None:
        style = studio.encode(photo)
    elif arguments.style_id is not None:
        style = studio.style_named(arguments.style_id)
    else:
        return [studio.style_drawn(arguments.seed + each) for each in range(arguments.n)]
    draw = np.random.default_rng(arguments.seed)
    noise = draw.standard_normal((arguments.n - 1, style.size), np.float32)
    return [style, *(style + np.float32(arguments.variation) * each for each in noise)]


def _title(arguments: argparse.Namespace) -> str:
    style = arguments.style_id or (arguments.style and arguments.style.name)
    return f"{arguments.labels.name} in {style or f'random styles from seed {arguments.seed}'}"


def _write(folder: Path, labels: NDArray[np.uint8], pictures: list[NDArray[np.uint8]]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LandscapesError(f"{folder} cannot be written: {error.strerror}.") from error
    write_image(folder / "map.png", paint_labels(labels))
    for number, picture in enumerate(pictures):
        write_image(folder / f"{number}.png", picture)
