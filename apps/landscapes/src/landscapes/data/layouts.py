"""Finds photos and their label maps in the folders that data sets come in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from landscapes.errors import LandscapesError

if TYPE_CHECKING:
    from pathlib import Path

PHOTOS = (".jpg", ".jpeg", ".png", ".webp")
LABELS = (".png",)
# By layout: folders of photos and of labels, and the part that they are.
LAYOUTS = {
    "ade20k": (
        ("images/training", "annotations/training", "train"),
        ("images/validation", "annotations/validation", "val"),
    ),
    "coco": (("train_img", "train_label", "train"), ("val_img", "val_label", "val")),
    "labels": (("images", "labels", ""),),
    "seg_maps": (("images", "seg_maps", ""),),
}


@dataclass(frozen=True)
class Files:
    """A photo and its label map. ``part`` is train, val or, if the data set has no parts, empty."""

    photo: Path
    labels: Path
    part: str


@dataclass(frozen=True)
class Found:
    """The contents of a folder: its layout, pairs by name, and files without a partner."""

    layout: str
    pairs: tuple[Files, ...]
    photos_alone: tuple[Path, ...]
    labels_alone: tuple[Path, ...]


def find_files(folder: Path, layout: str = "auto") -> Found:
    """Return the pairs in ``folder``; ``auto`` takes the first layout whose folders are there.

    Raise LandscapesError for a folder of no layout, for photos without any label map, and for two
    photos of one name.
    """
    if not folder.is_dir():
        raise LandscapesError(f"There is no folder {folder}.")
    if layout == "auto":
        present = (name for name, parts in LAYOUTS.items() if _has(folder, parts[0]))
        layout = next(present, "")
    parts = [part for part in LAYOUTS.get(layout, ()) if _has(folder, part)]
    if not parts:
        raise LandscapesError(_describe_missing(folder))
    found = [find_in(folder / photos, folder / labels, part) for photos, labels, part in parts]
    return Found(
        layout,
        tuple(files for each in found for files in each.pairs),
        tuple(path for each in found for path in each.photos_alone),
        tuple(path for each in found for path in each.labels_alone),
    )


def _has(folder: Path, part: tuple[str, str, str]) -> bool:
    return (folder / part[0]).is_dir() and (folder / part[1]).is_dir()


def _describe_missing(folder: Path) -> str:
    known = "; ".join(f"{parts[0][0]}/ with {parts[0][1]}/" for parts in LAYOUTS.values())
    if any(path.suffix.lower() in PHOTOS for path in folder.iterdir()):
        return (
            f"{folder} holds photos and no label maps: make them with `landscapes label`, or put "
            f"both into folders: {known}."
        )
    return f"{folder} has none of these folders: {known}. Name them with --images and --labels."


def find_in(photos: Path, labels: Path, part: str = "") -> Found:
    """Return the pairs of two folders: files whose names differ in the ending only.

    Raise LandscapesError if a folder is missing or two photos have the same name.
    """
    for folder in (photos, labels):
        if not folder.is_dir():
            raise LandscapesError(f"There is no folder {folder}.")
    of_photos, of_labels = _by_stem(photos, PHOTOS), _by_stem(labels, LABELS)
    both = sorted(of_photos.keys() & of_labels.keys())
    return Found(
        "folders",
        tuple(Files(of_photos[stem], of_labels[stem], part) for stem in both),
        tuple(of_photos[stem] for stem in sorted(of_photos.keys() - of_labels.keys())),
        tuple(of_labels[stem] for stem in sorted(of_labels.keys() - of_photos.keys())),
    )


def _by_stem(folder: Path, endings: tuple[str, ...]) -> dict[str, Path]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in endings)
    stems = [str(path.relative_to(folder).with_suffix("")) for path in paths]
    twice = [stem for stem, count in Counter(stems).items() if count > 1]
    if twice:
        raise LandscapesError(
            f"{folder} has {len(twice)} names with more than one file, such as {twice[0]}: keep "
            "one of each."
        )
    return dict(zip(stems, paths, strict=True))
