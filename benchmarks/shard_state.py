"""Optimizer state in shares: memory of each rank, and a step beside the same without shares.

    python benchmarks/shard_state.py
    python benchmarks/shard_state.py --np 1 2 4 --optimizer SGD

All ways live in the same processes and take turns, step by step. ZeroRedundancyOptimizer is that of
torch.distributed, with DistributedDataParallel over gloo. A time is that of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import measure
import torch
from libraries import GlooLibrary, HorovodLibrary
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from training_step import mlp, step_of

import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = {
    "horovod": "DistributedOptimizer",
    "shares": "DistributedOptimizer(shard_state=True)",
    "ddp": "DDP over gloo",
    "zero": "DDP over gloo, ZeroRedundancyOptimizer",
}
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3}),
    "SGD": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
}
WARMUP_STEPS = 4


def make(
    way: str, args: argparse.Namespace, rank: int
) -> tuple[Callable[[], None], torch.optim.Optimizer]:
    """Return a step of one of ``WAYS``, and its optimizer."""
    torch.manual_seed(0)
    model = mlp(args.width)
    kind, options = OPTIMIZERS[args.optimizer]
    torch.manual_seed(1 + rank)
    images = torch.randn(args.batch, args.width)
    if way in ("horovod", "shares"):
        plain = kind(model.parameters(), **options)
        optimizer = hvd.DistributedOptimizer(
            plain, model.named_parameters(), shard_state=way == "shares"
        )
        return step_of(model, optimizer, images), optimizer
    parallel = DistributedDataParallel(model)
    if way == "ddp":
        optimizer = kind(parallel.parameters(), **options)
    else:
        optimizer = ZeroRedundancyOptimizer(parallel.parameters(), optimizer_class=kind, **options)
    return step_of(parallel, optimizer, images), optimizer


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of the tensors that an optimizer keeps on this rank."""
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer = optimizer.optim
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


def run_rank(args: argparse.Namespace) -> None:
    """Measure all ways in turn, as one of the ranks."""
    seat = measure.Seat()
    libraries = [HorovodLibrary(seat), GlooLibrary(seat)]
    made = {way: make(way, args, seat.rank) for way in args.ways}
    for step, _ in made.values():
        for _ in range(WARMUP_STEPS):
            step()
    times_s: dict[str, list[float]] = {way: [] for way in made}
    processor_s = dict.fromkeys(made, 0.0)
    for number in range(args.steps):
        shift = number % len(made)
        for way in (*args.ways[shift:], *args.ways[:shift]):
            seat.exchange("ready")
            began, used = time.perf_counter(), time.process_time()
            made[way][0]()
            times_s[way].append(time.perf_counter() - began)
            processor_s[way] += time.process_time() - used
    report = {
        way: {
            "times_s": times_s[way],
            "processor_s": processor_s[way] / args.steps,
            "state_bytes": state_bytes(optimizer),
        }
        for way, (_, optimizer) in made.items()
    }
    everyones = seat.exchange(report)
    for library in libraries:
        library.close()
    if seat.rank == 0:
        args.result.write_text(json.dumps(everyones))


def rows_of(everyones: list[dict[str, Any]]) -> list[list[str]]:
    """Return the rows of the table of one number of ranks."""
    rows = []
    for way in everyones[0]:
        slowest = list(map(max, zip(*(each[way]["times_s"] for each in everyones), strict=True)))
        state = [each[way]["state_bytes"] / measure.MIB for each in everyones]
        processor_ms = 1e3 * statistics.mean(each[way]["processor_s"] for each in everyones)
        rows.append(
            [
                WAYS[way],
                f"{min(state):.1f} to {max(state):.1f} MiB",
                f"{1e3 * min(slowest):.0f} / {1e3 * statistics.median(slowest):.0f} ms",
                f"{processor_ms:.0f} ms",
            ]
        )
    return rows


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="AdamW")
    parser.add_argument("--width", type=int, default=2048, help="25 million parameters with 2048")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20, help="of each way")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--is-rank", action="store_true", help=argparse.SUPPRESS)
    measure.add_common_arguments(parser, "number of ranks", 0.0)
    parser.set_defaults(np=[1, 2, 4], libraries=["horovod", "gloo"])
    return parser.parse_args()


def main(args: argparse.Namespace) -> None:
    """Start one job after the other, or be a rank of one."""
    if args.is_rank:
        run_rank(args)
        return
    header = ["way", "state of a rank", "step: least / median", "processor time"]
    for num_ranks in args.np:
        load = os.getloadavg()[0]
        arguments = [*sys.argv[1:], "--is-rank"]
        everyones = measure.run_ranks(__file__, arguments, num_ranks, False)
        print(f"{num_ranks} ranks, {args.optimizer}, load average before: {load:.1f}\n")
        print(measure.table(header, rows_of(everyones)), flush=True)


if __name__ == "__main__":
    main(parse_args())
