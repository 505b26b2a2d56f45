"""``landscapes export``: the networks as ONNX, or the whole page as static files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from landscapes.errors import LandscapesError

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", type=Path, help="a run's folder or its generator; default: the shipped one"
    )
    parser.add_argument(
        "--onnx", type=Path, metavar="FOLDER", help="write generator.onnx and encoder.onnx there"
    )
    parser.add_argument(
        "--site",
        type=Path,
        metavar="FOLDER",
        help="write the page there, with models that run in the browser",
    )
    parser.add_argument("--opset", type=int, default=18, help="of ONNX (default: 18)")


def run(arguments: argparse.Namespace) -> int:
    """Write what was asked for, and print how far the models are from PyTorch."""
    if arguments.onnx is None and arguments.site is None:
        raise LandscapesError("Say what to write: --onnx FOLDER, --site FOLDER, or both.")
    from landscapes.open_studio import open_network, open_studio

    apart: dict[str, float] = {}
    if arguments.onnx is not None:
        apart = open_network(arguments.checkpoint).export(arguments.onnx, arguments.opset)
        print(f"Models: {arguments.onnx}")
    if arguments.site is not None:
        from landscapes.site import write_site

        apart = write_site(open_studio(arguments.checkpoint), arguments.site, arguments.opset)
        print(f"Page: {arguments.site}; try it: python -m http.server -d {arguments.site}")
    for name, difference in apart.items():
        print(f"{name}.onnx differs from PyTorch by {difference:.1e} at most, in onnxruntime")
    return 0
