"""``landscapes data``: checks a data set before training, and imports folders of photos."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from landscapes.data import open_pairs
from landscapes.data.check import Checked, check_pairs, check_photos
from landscapes.data.class_maps import load_map, shipped_maps
from landscapes.data.importing import import_photos
from landscapes.data.layouts import LAYOUTS, find_files, find_in
from landscapes.data.store import SPLITS, describe
from landscapes.errors import LandscapesError

if TYPE_CHECKING:
    import argparse

    import numpy as np
    from numpy.typing import NDArray


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two commands and their options."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = commands.add_parser("check", help="say what a data set holds, and what is wrong")
    bring = commands.add_parser("import", help="turn photos and label maps into a folder of pairs")
    bring.add_argument("--out", type=Path, required=True, help="folder to write, not yet there")
    bring.add_argument("--size", type=int, default=128, help="pixels of a side (%(default)s)")
    bring.add_argument("--skip-bad", action="store_true", help="leave out pairs with problems")
    for each in (check, bring):
        _add_options(each)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, nargs="?", help="photos and label maps, or (check) pairs that are made"
    )
    parser.add_argument(
        "--layout", choices=["auto", *LAYOUTS], default="auto", help="folders to look for"
    )
    parser.add_argument(
        "--images", "--image_dir", type=Path, help="folder of photos, if it has no known layout"
    )
    parser.add_argument(
        "--labels", "--label_dir", type=Path, help="folder of label maps, with --images"
    )
    parser.add_argument(
        "--map",
        metavar="FILE",
        help=f"which classes other ids are: {', '.join(shipped_maps())} or FILE",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes that read files (%(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Check, or check and import. Return 1 if a check found pairs with problems."""
    if arguments.workers < 1:
        raise LandscapesError(f"--workers is {arguments.workers}: give 1 or more.")
    if (arguments.folder is None) == (arguments.images is None):
        raise LandscapesError("Give a folder, or both --images and --labels.")
    if arguments.action == "check" and arguments.folder and _is_finished(arguments.folder):
        print(describe(arguments.folder).name)
        splits = {split: open_pairs(arguments.folder, split) for split in SPLITS}
        print("\n".join(check_pairs(splits)))
        return 0
    table = load_map(arguments.map) if arguments.map else None
    checked = _check(arguments, table)
    print("\n".join(checked.sentences()))
    if arguments.action == "check":
        return 1 if checked.problems else 0
    return _import(arguments, checked, table)


def _is_finished(folder: Path) -> bool:
    return (folder / "data.json").exists()


def _check(arguments: argparse.Namespace, table: NDArray[np.uint8] | None) -> Checked:
    if (arguments.images is None) != (arguments.labels is None):
        raise LandscapesError("Give both --images and --labels, or neither.")
    if arguments.images is not None:
        found = find_in(arguments.images, arguments.labels)
    else:
        found = find_files(arguments.folder, arguments.layout)
    return check_photos(found, table, arguments.workers)


def _import(
    arguments: argparse.Namespace, checked: Checked, table: NDArray[np.uint8] | None
) -> int:
    if not 16 <= arguments.size <= 1024:
        raise LandscapesError(f"--size is {arguments.size}: give 16 to 1024 pixels.")
    if checked.problems and not arguments.skip_bad:
        raise LandscapesError(
            f"{len(checked.problems)} pairs have problems, listed above: repair them, or leave "
            "them out with --skip-bad."
        )
    description = import_photos(
        arguments.out, checked.good, table, arguments.size, arguments.workers
    )
    print(f"{description.name}: {description.count} pairs in {arguments.out}")
    return 0
