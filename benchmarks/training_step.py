"""A training step: alone, with DistributedOptimizer, and with DistributedDataParallel over gloo.

    python benchmarks/training_step.py
    python benchmarks/training_step.py --np 1

README.md in this folder says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from typing import TYPE_CHECKING, Any

import measure
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

LEARNING_RATE = 1e-3
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


def make_ways(
    model: nn.Module, images: torch.Tensor, libraries: list[str], size: int
) -> dict[str, Callable[[], None]]:
    """Each way trains a copy of the model."""
    import horovod.torch as hvd

    def sgd(of: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(of.parameters(), lr=LEARNING_RATE)

    ways: dict[str, Callable[[], None]] = {}
    copies = [copy.deepcopy(model) for _ in WAYS]
    ways["alone"] = step_of(copies[0], sgd(copies[0]), images)
    ours = hvd.DistributedOptimizer(sgd(copies[1]), copies[1].named_parameters())
    ways["horovod"] = step_of(copies[1], ours, images)
    if size > 1:
        named = ((f"private.{name}", param) for name, param in copies[2].named_parameters())
        private = hvd.DistributedOptimizer(sgd(copies[2]), named, gradient_buckets=False)
        ways["private"] = step_of(copies[2], private, images)
    if "gloo" in libraries and size > 1:
        ways["ddp"] = step_of(DistributedDataParallel(copies[3]), sgd(copies[3]), images)
    return ways


def measure_workload(
    seat: measure.Seat | measure.Alone,
    barrier: Callable[[], None],
    ways: dict[str, Callable[[], None]],
    seconds: float,
) -> dict[str, Any]:
    """The rounds of one model."""
    contestants = [measure.Contestant(name, step, barrier) for name, step in ways.items()]
    for contestant in contestants:
        contestant.burst(4)  # the first steps find out how gradients look, and share memory
    return measure.summarize(measure.run_rounds(seat, contestants, seconds))


def run_rank(seat: measure.Seat | measure.Alone, args: argparse.Namespace) -> dict[str, Any]:
    """What each rank does."""
    import horovod.torch as hvd

    load_average = os.getloadavg()[0]
    libraries: dict[str, measure.Library] = {}
    if isinstance(seat, measure.Seat):
        libraries = measure.open_libraries(args.libraries, seat)
    else:
        hvd.init()
    torch.manual_seed(seat.rank)
    rows = []
    for name, (model, images) in workloads(args).items():
        ways = make_ways(model, images, args.libraries, seat.size)
        row = measure_workload(seat, hvd.barrier, ways, args.seconds)
        num_params = sum(param.numel() for param in model.parameters())
        rows.append({"workload": name, "parameters": num_params, **row})
        seat.say(f"{seat.size} ranks: {name} done")
    run = {"np": seat.size, "load_average": load_average, "batch": args.batch, "workloads": rows}
    if isinstance(seat, measure.Seat):
        measure.close_libraries(seat, libraries)
    else:
        hvd.shutdown()
    return run


def show_run(run: dict[str, Any]) -> str:
    """The table of one number of ranks."""
    rows = []
    for row in run["workloads"]:
        what = f"{row['workload']} ({row['parameters'] / 1e6:.1f} M)"
        for name, numbers in row["contestants"].items():
            ratio = row["speedup"].get(name)
            speed = "" if ratio is None else f"{100 / ratio:.1f} %"
            rows.append([what, WAYS[name], measure.show_times(numbers), speed])
    title = (
        f"{run['np']} ranks, batches of {run['batch']}; "
        f"load average before: {run['load_average']:.1f}"
    )
    header = ["model", "way", "step: p10 / median / p90", "speed of no communication"]
    return f"{title}\n\n{measure.table(header, rows)}\n"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--mlp-width", type=int, default=2048)
    parser.add_argument("--cnn-width", type=int, default=64)
    parser.add_argument("--image", type=int, default=32, help="pixels along an edge")
    measure.add_common_arguments(parser, "workload", 30.0)
    parser.set_defaults(np=[2], libraries=["horovod", "gloo"])
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse_args()
    if arguments.np == [1]:
        print(show_run(run_rank(measure.Alone(), arguments)))
        sys.exit()
    measure.run_benchmark(__file__, arguments, run_rank, show_run)
