"""``landscapes train``: trains a model, on one process or under horovodrun."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from landscapes.errors import LandscapesError
from landscapes.nets.presets import PRESETS
from landscapes.train.settings import Settings

UNITS_S = {"s": 1, "m": 60, "h": 3600, "": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; SPADE's own names are accepted, too."""
    add = parser.add_argument
    add("--data", "--dataroot", type=Path, required=True, help="folder of pairs")
    add("--out", type=Path, required=True, help="folder of the run")
    add("--preset", choices=sorted(PRESETS), default="tiny64", help="sizes (%(default)s)")
    add("--seed", type=int, default=1, help="of all random numbers (%(default)s)")
    add("--batch", "--batchSize", type=int, default=4, help="pictures of a rank in a step")
    add("--steps", type=int, default=1000, help="where the run ends (%(default)s)")
    add("--time-budget", type=parse_time_s, help="stop with a checkpoint after, say, 9m")
    add("--save-every", type=int, default=200, help="steps between checkpoints (%(default)s)")
    add("--print-every", "--print_freq", type=int, default=10, help="steps a line (%(default)s)")
    add("--commit-every", type=int, default=10, help="steps that a lost rank may cost")
    add("--perceptual", choices=("own", "vgg19", "none"), default="own", help="perceptual loss")
    add("--vgg-weights", type=Path, help="torchvision's file for --perceptual vgg19")
    add(
        "--guide-steps", type=int, default=300, help="steps of the own loss's network (%(default)s)"
    )
    add("--by-hand", type=float, default=0.0, help="share of maps with borders as by hand (0)")
    add("--resume", "--continue_train", action="store_true", help="go on with the run in --out")
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto is a GPU if there is one",
    )
    add("--tensorboard", "--tf_log", action="store_true", help="write scalars to OUT/tensorboard")


def parse_time_s(text: str) -> float:
    """Return a length of time such as 90s, 9m or 1.5h in seconds.

    Raise argparse.ArgumentTypeError for others.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give one such as 90s, 9m or 1.5h")
    return float(match[1]) * UNITS_S[match[2]]


def run(arguments: argparse.Namespace) -> int:
    """Train, and let rank 0 say where the model is."""
    for name in ("batch", "steps", "save_every", "print_every", "commit_every", "guide_steps"):
        if getattr(arguments, name) < 1:
            option = name.replace("_", "-")
            raise LandscapesError(f"--{option} is {getattr(arguments, name)}: give 1 or more.")
    if not 0 <= arguments.by_hand <= 1:
        raise LandscapesError(f"--by-hand is {arguments.by_hand}: give a share from 0 to 1.")
    if (arguments.perceptual == "vgg19") != (arguments.vgg_weights is not None):
        raise LandscapesError(
            "--perceptual vgg19 and --vgg-weights FILE belong together: nothing is downloaded."
        )
    import horovod.torch as hvd
    from landscapes.train.run import train

    values = {**vars(arguments), "budget_s": arguments.time_budget}
    settings = Settings(**{key: values[key] for key in Settings.__dataclass_fields__})
    hvd.init()
    steps = train(settings)
    if hvd.rank() == 0:
        print(f"{steps} steps: the model is in {settings.out}", file=sys.stderr)
    hvd.shutdown()
    return 0
