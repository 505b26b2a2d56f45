"""Replays the backward pass of a network on emulated hosts: how well does training scale?

    python benchmarks/replay.py
    python benchmarks/replay.py --models resnet101 --hosts 4 --steps 10

Gradients have the sizes of a real network and become ready at the times at which a P100-class GPU
has them (models.py); the time between them is slept, so that the processor is free for
communication, as it is beside a GPU. README.md in this folder says how time is scaled.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import emulated
import measure
import models
import torch

import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REAL_RATE_MBIT = 25_000.0
WARMUP_STEPS = 2


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[4])
    parser.add_argument("--ranks-per-host", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--models",
        type=lambda text: text.split(","),
        default=list(models.models()),
        help=f"some of {','.join(models.models())}, separated by commas",
    )
    parser.add_argument("--steps", type=int, default=5, help="measured, behind two others")
    parser.add_argument(
        "--real-rate-mbit",
        type=float,
        default=REAL_RATE_MBIT,
        help="of the hosts that are emulated (default: 25000)",
    )
    parser.add_argument(
        "--shrink",
        type=float,
        default=1.0,
        help="divide gradients and times by this, for a quick look (default: 1)",
    )
    emulated.add_rate_argument(parser)
    measure.add_common_arguments(parser, "model", 0.0)
    parser.set_defaults(libraries=["horovod"])
    args = parser.parse_args()
    unknown = set(args.models) - set(models.models())
    if unknown or args.rate_mbit <= 0 or args.shrink < 1 or args.steps < 1:
        parser.error(f"--models {unknown or ''}, --rate-mbit, --shrink or --steps make no sense")
    return args


def start_jobs(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One job for each number of hosts and of ranks on a host."""
    emulated.check_possible()
    for hosts in args.hosts:
        for ranks_per_host in args.ranks_per_host:
            shape = emulated.Shape(hosts, ranks_per_host, args.rate_mbit)
            run = emulated.run_on_hosts(__file__, sys.argv[1:], shape)
            yield {"title": str(shape), "hosts": hosts, **run}


@dataclass(frozen=True)
class Step:
    """A training step on the emulated clock.

    Attributes:
        forward_s: seconds before the backward pass begins.
        ready_s: by gradient, seconds after its begin.
        backward_s: seconds that it takes.
        counts: float32 elements of each gradient.
    """

    forward_s: float
    ready_s: tuple[float, ...]
    backward_s: float
    counts: tuple[int, ...]


def plan_step(model: models.Model, slowdown: float, shrink: float) -> Step:
    """Scales a step.

    Args:
        model: sizes and times on the real machine.
        slowdown: the real line rate divided by the emulated one.
        shrink: divides sizes and times; the ratio of compute to network stays.
    """
    scale = slowdown / shrink
    return Step(
        forward_s=model.forward_s * scale,
        ready_s=tuple(each.ready * model.backward_s * scale for each in model.gradients),
        backward_s=model.backward_s * scale,
        counts=tuple(max(1, round(each.elements / shrink)) for each in model.gradients),
    )


def least_s(step: Step, hosts: int, rate_mbit: float) -> float:
    """Seconds of a step in which each host's line is always busy while there is something to send.

    Each of n hosts has to send, and to receive, 2 (n - 1) / n of every gradient, in full frames.
    """
    bytes_per_s = rate_mbit * 1e6 / 8 * emulated.cluster.WIRE_SHARE
    free_s = 0.0
    for ready_s, count in zip(step.ready_s, step.counts, strict=True):
        num_bytes = 4 * count * 2 * (hosts - 1) / hosts
        free_s = max(free_s, ready_s) + num_bytes / bytes_per_s
    return step.forward_s + max(step.backward_s, free_s)


def sleep_until(moment_s: float) -> None:
    """Sleeps until a value of ``time.perf_counter()``; returns at once if it has passed."""
    left_s = moment_s - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)


def run_step(step: Step, submit: Callable[[int], int] | None) -> float:
    """Goes through one step; returns its seconds.

    As on a GPU, what the processor does meanwhile delays no later gradient: all times count from
    the begin of the step.

    Args:
        submit: starts the reduction of a gradient and returns its handle; None to compute alone.
    """
    began_s = time.perf_counter()
    handles = []
    for index, ready_s in enumerate(step.ready_s):
        sleep_until(began_s + step.forward_s + ready_s)
        if submit is not None:
            handles.append(submit(index))
    sleep_until(began_s + step.forward_s + step.backward_s)
    for handle in handles:
        hvd.synchronize(handle)
    return time.perf_counter() - began_s


def measure_model(
    seat: measure.Seat, name: str, step: Step, args: argparse.Namespace
) -> dict[str, Any]:
    """One row of the table: steps alone and with the others, in turn."""
    gradients = [torch.zeros(count) for count in step.counts]

    def submit(index: int) -> int:
        return hvd.allreduce_async_(gradients[index], name=f"{name}.{index}", op=hvd.Average)

    together: list[float] = []
    alone: list[float] = []
    for number in range(WARMUP_STEPS + args.steps):
        hvd.barrier()
        together.append(run_step(step, submit))
        if number >= WARMUP_STEPS:
            alone.append(run_step(step, None))
    slowest = [max(times) for times in zip(*seat.exchange(together), strict=True)][WARMUP_STEPS:]
    alone_s = statistics.median(statistics.median(times) for times in seat.exchange(alone))
    hosts = len(set(seat.exchange(seat.address)))
    return {
        "model": name,
        "gradients": len(step.counts),
        "bytes": 4 * sum(step.counts),
        "alone_s": alone_s,
        "together_s": statistics.median(slowest),
        "slowest_s": max(slowest),
        "fastest_s": min(slowest),
        "efficiency": alone_s / statistics.median(slowest),
        "bound": (step.forward_s + step.backward_s) / least_s(step, hosts, args.rate_mbit),
    }


def run_rank(seat: measure.Seat, args: argparse.Namespace) -> dict[str, Any]:
    """What each rank does."""
    load_average = os.getloadavg()[0]
    hvd.init()
    slowdown = args.real_rate_mbit / args.rate_mbit
    rows = []
    for name in args.models:
        step = plan_step(models.models()[name], slowdown, args.shrink)
        rows.append(measure_model(seat, name, step, args))
        seat.say(f"{name}: {rows[-1]['efficiency']:.1%}")
    hvd.shutdown()
    return {
        "np": seat.size,
        "slowdown": slowdown,
        "shrink": args.shrink,
        "load_average": load_average,
        "models": rows,
    }


def show_run(run: dict[str, Any]) -> str:
    """The table of one job."""
    header = ["model", "gradients", "MB", "step alone", "step together: min / median / max"]
    header += ["efficiency", "possible"]
    rows = []
    for row in run["models"]:
        rows.append(
            [
                row["model"],
                str(row["gradients"]),
                f"{row['bytes'] / 1e6:.1f}",
                f"{row['alone_s']:.3f} s",
                f"{row['fastest_s']:.3f} / {row['together_s']:.3f} / {row['slowest_s']:.3f} s",
                f"{row['efficiency']:.1%}",
                f"{row['bound']:.1%}",
            ]
        )
    title = (
        f"{run.get('title', '')}; time runs {run['slowdown']:g} times slower, all is "
        f"{run['shrink']:g} times smaller; load average before: {run['load_average']:.1f}"
    )
    return f"{title}\n\n{measure.table(header, rows)}\n"


if __name__ == "__main__":
    measure.run_benchmark(__file__, parse_args(), run_rank, show_run, start_jobs)
