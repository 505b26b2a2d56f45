"""``landscapes label``: makes label maps for photos, by the segmenter of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from landscapes.errors import LandscapesError, naming_failure

if TYPE_CHECKING:
    import argparse

ENDINGS = {".png", ".jpg", ".jpeg", ".webp"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("--photos", type=Path, required=True, help="folder of photos")
    add("--out", type=Path, required=True, help="folder for images/ and labels/")
    add("--checkpoint", type=Path, help="folder of a run; without it, the shipped model")


def run(arguments: argparse.Namespace) -> int:
    """Write the central square of each photo to images/ and its map to labels/, as PNG."""
    import torch
    from PIL import Image

    from landscapes.checkpoint import SHIPPED, load_model
    from landscapes.photos import crop_square, read_photo
    from landscapes.train.batches import to_pictures

    files = _photos(arguments.photos)
    model = load_model(arguments.checkpoint or SHIPPED)
    if model.segmenter is None:
        raise LandscapesError("This checkpoint has no segmenter: it was trained without a guide.")
    for file in files:
        square = crop_square(read_photo(file), model.preset.size)
        with torch.inference_mode():
            seen = model.segmenter(to_pictures(square[None])).classes[0].argmax(0)
        for name, pixels in (("images", square), ("labels", seen.to(torch.uint8).numpy())):
            target = arguments.out / name / f"{file.stem}.png"
            with naming_failure(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(target)
    print(f"{len(files)} maps of {model.preset.size} px are in {arguments.out / 'labels'}.")
    return 0


def _photos(folder: Path) -> list[Path]:
    """Return the photos in ``folder``. Refuse none, and two whose maps would have one name."""
    try:
        files = sorted(each for each in folder.iterdir() if each.suffix.lower() in ENDINGS)
    except OSError as error:
        raise LandscapesError(f"{folder} cannot be read: {error.strerror}.") from error
    if not files:
        raise LandscapesError(f"{folder} holds no photo: {', '.join(sorted(ENDINGS))} are read.")
    stems = [each.stem for each in files]
    twice = sorted({each for each in stems if stems.count(each) > 1})
    if twice:
        raise LandscapesError(f"Two photos in {folder} are called {twice[0]}: rename one of them.")
    return files
