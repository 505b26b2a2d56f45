"""``landscapes render``: makes a data set of rendered pairs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from landscapes.data.rendering import Plan, render_data_set
from landscapes.errors import LandscapesError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

SMALLEST, LARGEST = 16, 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--out", type=Path, required=True, help="folder to write, not yet there")
    parser.add_argument("--count", type=int, default=4000, help="number of pairs (%(default)s)")
    parser.add_argument("--size", type=int, default=64, help="pixels of a side (%(default)s)")
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="first of the two numbers that a pair "
        "follows from; the other one is its index (%(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes that render (%(default)s)",
    )
    parser.add_argument(
        "--skies",
        choices=("painted", "real"),
        default="painted",
        help="real: half of the pairs have a sky from a panorama (%(default)s)",
    )
    parser.add_argument(
        "--folders",
        action="store_true",
        help="also write the pairs as PNG files, to images/ and labels/",
    )


def run(arguments: argparse.Namespace) -> int:
    """Render the pairs and say where they are."""
    _check(arguments)
    started_at = time.monotonic()
    skies = arguments.skies == "real"
    plan = Plan(arguments.out, arguments.count, arguments.size, arguments.seed, skies)
    description = render_data_set(plan, arguments.workers, _progress(arguments.count))
    if arguments.folders:
        from landscapes.data.photos import write_folders

        write_folders(arguments.out)
    took_s = time.monotonic() - started_at
    print(f"{description.name}: {arguments.count} pairs in {arguments.out}, {took_s:.0f} s")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if not SMALLEST <= arguments.size <= LARGEST:
        raise LandscapesError(f"--size is {arguments.size}: give {SMALLEST} to {LARGEST} pixels.")
    if arguments.seed < 0:
        raise LandscapesError(f"--seed is {arguments.seed}: give 0 or more.")
    if arguments.workers < 1:
        raise LandscapesError(f"--workers is {arguments.workers}: give 1 or more.")


def _progress(count: int) -> Callable[[int], None]:
    def report(done: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{done} of {count} pairs", end="" if done < count else "\n", file=sys.stderr)

    return report
