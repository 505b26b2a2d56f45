"""What a timeline costs: the same training steps with and without one, in turn.

    python benchmarks/timeline.py

Both ways train the same model in the same processes. A round has some hundred milliseconds of steps
without a timeline and as many with one, in changing order, so that the writing of the file, every
100 ms, falls into the measured time. README.md in this folder says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measure
import torch

import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 30
WAYS = {"without": "no timeline", "with": "timeline"}


def make_step(width: int, num_layers: int, batch: int) -> tuple[Callable[[], None], int]:
    """A training step of a small network, and how many gradients it sends."""
    torch.manual_seed(1)
    layers = [
        layer
        for _ in range(num_layers)
        for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())
    ]
    model = torch.nn.Sequential(*layers)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-6), model.named_parameters()
    )
    data = torch.randn(batch, width)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step, 2 * num_layers


class Way:
    """Training with or without a timeline; notes the processor's time beside the clock's.

    Args:
        step: one training step.
        path: of the timeline; None measures without one.
    """

    def __init__(self, step: Callable[[], None], path: Path | None) -> None:
        self._step = step
        self._path = path
        self.cpu_s: list[float] = []

    def prepare(self) -> None:
        """Starts or stops the timeline, then waits for all ranks."""
        if self._path is None:
            hvd.stop_timeline()
        else:
            hvd.start_timeline(str(self._path))
        hvd.barrier()

    def run(self) -> None:
        """Some steps."""
        began_s = time.process_time()
        for _ in range(STEPS):
            self._step()
        self.cpu_s.append((time.process_time() - began_s) / STEPS)


def run_rank(seat: measure.Seat, args: argparse.Namespace) -> dict[str, Any]:
    """What each rank does."""
    hvd.init()
    load_average = os.getloadavg()[0]
    step, num_gradients = make_step(args.width, args.layers, args.batch)
    with tempfile.TemporaryDirectory(prefix="horovod-timeline-") as directory:
        path = Path(directory) / "timeline.json"
        ways = {"without": Way(step, None), "with": Way(step, path)}
        contestants = [measure.Contestant(name, way.run, way.prepare) for name, way in ways.items()]
        rounds = measure.summarize(measure.run_rounds(seat, contestants, args.seconds))
        hvd.stop_timeline()
        num_events = len(json.loads(path.read_text())) if seat.rank == 0 else 0
    cpu_s = {name: way.cpu_s[-rounds["rounds"] :] for name, way in ways.items()}
    more = [b / a for a, b in zip(cpu_s["without"], cpu_s["with"], strict=True)]
    run = {
        "np": seat.size,
        "load_average": load_average,
        "gradients": num_gradients,
        "steps_per_run": STEPS,
        "events_of_last_run": num_events,
        "cpu_us": seat.exchange({name: 1e6 * statistics.median(s) for name, s in cpu_s.items()}),
        "cpu_ratio": seat.exchange(statistics.median(more)),
        **rounds,
    }
    hvd.shutdown()
    return run


def show_run(run: dict[str, Any]) -> str:
    """The table of one number of ranks."""
    rows = []
    for name, numbers in run["contestants"].items():
        per_step = {key: value / run["steps_per_run"] for key, value in numbers.items()}
        cpu = " / ".join(f"{of_rank[name] / 1000:.3g}" for of_rank in run["cpu_us"])
        rows.append([WAYS[name], measure.show_times(per_step), f"{cpu} ms"])
    wall = _percent(run["speedup"]["with"])
    cpu = " / ".join(_percent(ratio) for ratio in run["cpu_ratio"])
    rows.append(["median of a round's ratios", wall, cpu])
    title = (
        f"{run['np']} ranks, {run['gradients']} gradients per step, {run['rounds']} rounds; "
        f"load average before: {run['load_average']:.1f}"
    )
    header = ["", "step: p10 / median / p90", "processor time of a step on rank 0 / 1 / …"]
    return f"{title}\n\n{measure.table(header, rows)}\n"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f} %"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=256, help="of each layer")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    measure.add_common_arguments(parser, "run", 30.0)
    parser.set_defaults(np=[2], libraries=["horovod"])
    return parser.parse_args()


if __name__ == "__main__":
    measure.run_benchmark(__file__, parse_args(), run_rank, show_run)
