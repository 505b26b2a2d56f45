"""The command line: ``landscapes COMMAND``; each command is a module beside this one.

A module ``landscapes.cli.NAME`` defines ``add_arguments(parser)`` and ``run(arguments) -> int``.
Only the module of the command that was asked for is imported, so that ``landscapes --help``
takes no time and a command needs no package of another one.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING

from landscapes import __version__
from landscapes.errors import LandscapesError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "render": "make pairs of rendered landscapes and label maps",
    "data": "check a data set before training",
    "train": "train a model, on one process or under horovodrun",
    "synth": "paint landscapes from a label map",
    "eval": "measure a checkpoint beside its controls",
    "label": "make label maps for photos",
    "export": "write the generator as ONNX",
    "serve": "open a page to paint on",
}


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser, with the arguments of ``command`` alone.

    Other commands are listed with their help, and their modules stay unimported.
    """
    parser = argparse.ArgumentParser(
        prog="landscapes", description="Turn a sketch of colored regions into a landscape."
    )
    parser.add_argument("--version", action="version", version=f"landscapes {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        own = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == command:
            importlib.import_module(f"{__name__}.{name}").add_arguments(own)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Return 2 after a ``LandscapesError``, whose text goes to standard error, and 130 after Ctrl-C.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in words if word in COMMANDS), None)
    try:
        arguments = build_parser(command).parse_args(words)
        status: int = importlib.import_module(f"{__name__}.{arguments.command}").run(arguments)
    except LandscapesError as error:
        print(f"landscapes: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status
