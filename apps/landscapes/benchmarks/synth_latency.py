"""Measure how long a picture takes on one core: ``python benchmarks/synth_latency.py``.

The networks have random weights: what they compute does not change how long it takes. Prints
milliseconds of wall-clock and of processor time, median and smallest of many, for PyTorch and for
onnxruntime, each from a map and a style in memory to the pixels of a picture.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import torch

from landscapes.checkpoint import random_model
from landscapes.open_studio import TorchNetwork
from landscapes.studio import to_pixels

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=["tiny64", "base128"])
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'preset':10}{'in':14}{'wall ms':>16}{'processor ms':>16}   median, smallest")
    for preset in arguments.presets:
        network = TorchNetwork(random_model(preset))
        draw = np.random.default_rng(0)
        labels = draw.integers(0, 9, (1, network.size, network.size), np.uint8)
        style = draw.standard_normal((1, network.z_dim), np.float32)
        painters: dict[str, Callable[[], NDArray[np.float32]]] = {
            "PyTorch": lambda: network.paint(labels, style),  # noqa: B023
            "onnxruntime": in_onnxruntime(network, labels, style),
        }
        for where, paint in painters.items():
            wall_s, processor_s = measure(paint, arguments.repeats)
            print(f"{preset:10}{where:14}{told(wall_s):>16}{told(processor_s):>16}")


def in_onnxruntime(
    network: TorchNetwork, labels: NDArray[np.uint8], style: NDArray[np.float32]
) -> Callable[[], NDArray[np.float32]]:
    """Return a function that paints the map with the exported generator, in one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        network.export(Path(folder))
        model = (Path(folder) / "generator.onnx").read_bytes()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = {"labels": labels.astype(np.int32), "style": style}
    return lambda: session.run(None, inputs)[0]


def measure(
    paint: Callable[[], NDArray[np.float32]], repeats: int
) -> tuple[list[float], list[float]]:
    """Return wall-clock and processor seconds of each repeat, after three that warm up."""
    wall_s, processor_s = [], []
    for repeat in range(repeats + 3):
        began_at, processor_at = time.perf_counter(), time.process_time()
        to_pixels(paint()[0])
        if repeat >= 3:
            wall_s.append(time.perf_counter() - began_at)
            processor_s.append(time.process_time() - processor_at)
    return wall_s, processor_s


def told(seconds: list[float]) -> str:
    return f"{1000 * statistics.median(seconds):.1f}, {1000 * min(seconds):.1f}"


if __name__ == "__main__":
    main()
