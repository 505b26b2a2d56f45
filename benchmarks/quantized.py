"""Compression to 8 bits between emulated hosts: an allreduce, and the step of a network.

    python benchmarks/quantized.py
    python benchmarks/quantized.py --hosts 2 --rates-mbit 100 --rounds 5
    python benchmarks/quantized.py --rates-mbit 1000 10000 --ways none auto

The compressions take turns in the same processes. The table has medians, and how much faster than
without compression each round was, as a median over the rounds. Needs root, as between_hosts.py.

The allocator of the ranks keeps what it frees, with every compression: otherwise the 100 MB of
gradients that each step allocates anew cost four ranks on two cores 50 ms of page faults.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import emulated
import measure
import torch
from seat import Seat

import horovod.torch as hvd
from horovod._settings.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WAYS = ("none", "int8", "fp8")
WIDTHS = (1024, 3072, 3072, 3072, 1024)  # 25 million parameters
SAMPLES = 8
KEEPING_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**31),
    "MALLOC_TRIM_THRESHOLD_": str(2**31),
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rates-mbit", type=float, nargs="+", default=[100.0, 1000.0])
    parser.add_argument("--mib", type=int, default=64, help="of the allreduce (default: 64)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="none, and what it is beside")
    parser.add_argument("--what", nargs="+", default=["allreduce", "step"])
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def allreduces(mib: int, ways: Sequence[str]) -> dict[str, Callable[[], object]]:
    """Return an allreduce of random float32 for each compression."""
    tensor = torch.randn(mib * measure.MIB // 4)

    def call(way: str) -> Callable[[], object]:
        compression = getattr(hvd.Compression, way)
        return lambda: hvd.allreduce(tensor, compression=compression, name=f"allreduce.{way}")

    return {way: call(way) for way in ways}


def steps(ways: Sequence[str]) -> dict[str, Callable[[], object]]:
    """Return a training step of a network of its own for each compression."""
    inputs = torch.randn(SAMPLES, WIDTHS[0])

    def call(way: str) -> Callable[[], object]:
        layers = [torch.nn.Linear(*pair) for pair in pairwise(WIDTHS)]
        model = torch.nn.Sequential(*(part for each in layers for part in (each, torch.nn.ReLU())))
        named = [(f"{way}.{name}", param) for name, param in model.named_parameters()]
        compression = getattr(hvd.Compression, way)
        plain = torch.optim.SGD(model.parameters(), lr=1e-3)
        optimizer = hvd.DistributedOptimizer(plain, named, compression=compression)

        def step() -> None:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

        return step

    return {way: call(way) for way in ways if way != "fp8"}


def run_rank(args: argparse.Namespace) -> dict[str, Any]:
    """Measure on each rank; return the seconds of each round by task and compression."""
    seat = Seat()
    hvd.init()
    measured: dict[str, Any] = {"load_average": os.getloadavg()[0]}
    for what in args.what:
        contestants = allreduces(args.mib, args.ways) if what == "allreduce" else steps(args.ways)
        times: dict[str, list[float]] = {way: [] for way in contestants}
        for number in range(args.rounds + 1):  # the first one is not counted
            for way, run in contestants.items():
                hvd.barrier()
                began_s = time.perf_counter()
                run()
                slowest_s = max(seat.exchange(time.perf_counter() - began_s))
                if number > 0:
                    times[way].append(slowest_s)
        measured[what] = times
        seat.say(f"{what} done")
    hvd.shutdown()
    if seat.rank == 0 and args.result is not None:
        args.result.write_text(json.dumps(measured))
    return measured


def show(shape: emulated.Shape, measured: dict[str, Any]) -> None:
    """Print the rows of one job."""
    for what, times in measured.items():
        if what == "load_average":
            continue
        for way, seconds in times.items():
            ratios = [a / b for a, b in zip(times["none"], seconds, strict=True)]
            faster = f"{statistics.median(ratios):.2f}"
            low, high = min(seconds), max(seconds)
            middle = statistics.median(seconds)
            times_text = f"{middle:.3f} ({low:.3f} to {high:.3f})"
            load = f"{measured['load_average']:.1f}"
            print(f"| {shape} | {what} | {way} | {times_text} | {faster} | {load} |", flush=True)


def main() -> None:
    args = parse_args()
    if Config.from_env().size > 1:
        run_rank(args)
        return
    emulated.check_possible()
    os.environ.update(KEEPING_MEMORY)
    print("| hosts | what | compression | seconds | times faster | load average |")
    print("|---|---|---|---:|---:|---:|")
    for rate in args.rates_mbit:
        for hosts in args.hosts:
            shape = emulated.Shape(hosts, args.ranks_per_host, rate or None)
            show(shape, emulated.run_on_hosts(__file__, sys.argv[1:], shape))


if __name__ == "__main__":
    main()
