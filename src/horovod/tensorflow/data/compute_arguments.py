"""The arguments that commands which run tf.data's service have in common."""

from __future__ import annotations

import argparse


def compute_arguments(prog: str, description: str) -> argparse.ArgumentParser:
    """A parser that knows what all commands have in common."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("configfile", help="file to write, which the training job can read")
    parser.add_argument(
        "--dispatchers",
        type=int,
        default=1,
        metavar="N",
        help="1 for all training ranks (the default), or as many as there are",
    )
    parser.add_argument(
        "--dispatcher-side",
        choices=("compute", "training"),
        default="compute",
        help="who runs the dispatchers (default: compute)",
    )
    parser.add_argument(
        "--serve-without-authentication",
        action="store_true",
        help="let anyone who can reach the servers use them, and so read and write your files",
    )
    return parser
