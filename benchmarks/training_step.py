"""A training step: alone, with DistributedOptimizer, and with DistributedDataParallel over gloo.

    python benchmarks/training_step.py
    python benchmarks/training_step.py --np 1

README.md in this folder says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measure
import torch
from libraries import GlooLibrary, HorovodLibrary
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from horovod._settings.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable

LEARNING_RATE = 1e-3
WARMUP_STEPS = 5  # the first ones find out how gradients look, and share memory
WAYS = {
    "alone": "no communication",
    "horovod": "Horovod",
    "private": "Horovod without gradient buckets",
    "ddp": "DDP over gloo",
}


def mlp(width: int) -> nn.Module:
    """Six layers; 25 million parameters if ``width`` is 2048."""
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(num_out),
            nn.ReLU(),
            nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(num_out),
        )
        self.around = (
            nn.Identity()
            if stride == 1
            else nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images in, smaller images of more channels out."""
        return functional.relu(self.body(x) + self.around(x))


def cnn(width: int) -> nn.Module:
    """Shaped as ResNet-18; 11 million parameters if ``width`` is 64."""
    blocks: list[nn.Module] = []
    num_in = width
    for stage in range(4):
        num_out = width * 2**stage
        blocks += [Residual(num_in, num_out, 1 if stage == 0 else 2), Residual(num_out, num_out, 1)]
        num_in = num_out
    head = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(
        *head, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_in, 10)
    )


def workloads(args: argparse.Namespace) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """By name a model and the shape of a batch."""
    return {
        "MLP": (mlp(args.mlp_width), torch.randn(args.batch, args.mlp_width)),
        "CNN": (cnn(args.cnn_width), torch.randn(args.batch, 3, args.image, args.image)),
    }


def step_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor
) -> Callable[[], None]:
    """A step as scripts have it."""
    labels = torch.arange(len(images)) % 10

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def make_step(way: str, model: nn.Module, images: torch.Tensor) -> Callable[[], None]:
    """A training step of one of ``WAYS``."""
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    if way in ("horovod", "private"):
        import horovod.torch as hvd

        optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), gradient_buckets=way == "horovod"
        )
    if way == "ddp":
        model = DistributedDataParallel(model)
    return step_of(model, optimizer, images)


def measure_step(
    seat: measure.Seat | measure.Alone, step: Callable[[], None], seconds: float
) -> float:
    """Seconds of a step on the slowest rank."""
    for _ in range(WARMUP_STEPS):
        step()
    began = time.perf_counter()
    step()
    own_s = time.perf_counter() - began
    num_steps = max(3, int(seconds / max(seat.exchange(own_s))))
    seat.exchange("ready")
    began = time.perf_counter()
    for _ in range(num_steps):
        step()
    return float(max(seat.exchange((time.perf_counter() - began) / num_steps)))


def run_rank(args: argparse.Namespace) -> None:
    """What each rank of one job does: one way, all models."""
    seat = measure.Seat() if Config.from_env().size > 1 else measure.Alone()
    libraries: dict[str, measure.Library] = {}
    if args.way == "ddp":
        assert isinstance(seat, measure.Seat)
        libraries["gloo"] = GlooLibrary(seat)
    elif args.way != "alone":
        libraries["horovod"] = HorovodLibrary(seat)
    torch.manual_seed(seat.rank)
    times_s = {}
    for name, (model, images) in workloads(args).items():
        times_s[name] = measure_step(seat, make_step(args.way, model, images), args.seconds)
    seat.exchange("finished")
    for library in libraries.values():
        library.close()
    if seat.rank == 0:
        args.result.write_text(json.dumps(times_s))


def run_job(args: argparse.Namespace, way: str, num_ranks: int) -> dict[str, float]:
    """Seconds of a step by model, in processes that do nothing else."""
    arguments = [*sys.argv[1:], "--way", way]
    if num_ranks > 1:
        times_s: dict[str, float] = measure.run_ranks(__file__, arguments, num_ranks, False)
        return times_s
    with tempfile.TemporaryDirectory(prefix="horovod-benchmark-") as directory:
        result = Path(directory) / "result.json"
        command = [sys.executable, __file__, *arguments, "--result", str(result)]
        subprocess.run(command, timeout=measure.JOB_TIMEOUT_S, check=True)
        times_s = json.loads(result.read_text())
    return times_s


def run_ways(args: argparse.Namespace, num_ranks: int) -> dict[str, Any]:
    """The rounds of one number of ranks."""
    ways = [way for way in args.ways if num_ranks > 1 or way in ("alone", "horovod")]
    if "gloo" not in args.libraries and "ddp" in ways:
        ways.remove("ddp")
    load_average = os.getloadavg()[0]
    rounds: dict[str, dict[str, list[float]]] = {}
    for index in range(args.rounds):
        # Nobody always comes first, or always after the same one.
        shift = index % len(ways)
        for way in (*ways[shift:], *ways[:shift]):
            for name, time_s in run_job(args, way, num_ranks).items():
                rounds.setdefault(name, {}).setdefault(way, []).append(time_s)
        print(f"{num_ranks} ranks: round {index + 1} of {args.rounds}", file=sys.stderr, flush=True)
    parameters = {
        name: sum(param.numel() for param in model.parameters())
        for name, (model, _) in workloads(args).items()
    }
    rows = [
        {
            "workload": name,
            "parameters": parameters[name],
            **measure.summarize(
                measure.Rounds(args.rounds, dict.fromkeys(ways, 1), {way: of[way] for way in ways})
            ),
        }
        for name, of in rounds.items()
    ]
    return {"np": num_ranks, "load_average": load_average, "batch": args.batch, "workloads": rows}


def show_run(run: dict[str, Any]) -> str:
    """The table of one number of ranks, with its title."""
    title = (
        f"{run['np']} rank(s), batches of {run['batch']}; "
        f"load average before: {run['load_average']:.1f}"
    )
    return f"{title}\n\n{show_table(run)}\n"


def show_table(run: dict[str, Any]) -> str:
    """Return the table of one number of ranks."""
    rows = []
    for row in run["workloads"]:
        what = f"{row['workload']} ({row['parameters'] / 1e6:.1f} M)"
        for name, numbers in row["contestants"].items():
            ratio = row["speedup"].get(name)
            speed = "" if ratio is None else f"{100 / ratio:.1f} %"
            rows.append([what, WAYS[name], measure.show_times(numbers), speed])
    header = ["model", "way", "step: p10 / median / p90", "speed of no communication"]
    return measure.table(header, rows)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--mlp-width", type=int, default=2048)
    parser.add_argument("--cnn-width", type=int, default=64)
    parser.add_argument("--image", type=int, default=32, help="pixels along an edge")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # given to the ranks
    measure.add_common_arguments(parser, "workload", 5.0)
    parser.set_defaults(np=[2, 1], libraries=["horovod", "gloo"])
    return parser.parse_args()


def main(args: argparse.Namespace) -> None:
    """Starts one job after the other, or is a rank of one."""
    if args.way:
        run_rank(args)
        return
    runs = []
    for num_ranks in args.np:
        runs.append(run_ways(args, num_ranks))
        print(show_run(runs[-1]), flush=True)
        measure.write_report(__file__, args.json, runs)


if __name__ == "__main__":
    main(parse_args())
