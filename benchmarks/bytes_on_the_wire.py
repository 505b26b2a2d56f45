"""What a host sends in a training step, with each way to send less.

    python benchmarks/bytes_on_the_wire.py
    python benchmarks/bytes_on_the_wire.py --hosts 4 --rate-mbit 1000

The network is that of quantized.py, 25 million parameters. The bytes are those that the kernel has
counted on the network interfaces of rank 0's host, headers, acknowledgments and what the job says
beside gradients included. Ranks run on hosts that are network namespaces of this machine (root and
iproute2 are needed).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import emulated
import quantized
import torch
from seat import Seat

import horovod.torch as hvd
from horovod._settings.config import Config

EVERY = 16
STEPS = 2 * EVERY
WAYS = ("none", "fp16", "int8", "powersgd(2)", f"LocalSGD, every {EVERY}", f"DiLoCo, every {EVERY}")


def sent_bytes() -> int:
    """Return what this host has sent since its interfaces exist, without loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    rows = [line.partition(":") for line in lines]
    return sum(int(counts.split()[8]) for name, _, counts in rows if name.strip() != "lo")


def wrap(way: str, plain: torch.optim.Optimizer, named: list[tuple[str, Any]]) -> Any:
    """Return the optimizer of a way."""
    kind, _, every = way.partition(", every ")
    if every:
        return getattr(hvd, kind)(plain, every=int(every))
    name, _, rank = way.rstrip(")").partition("(")
    compression = getattr(hvd.Compression, name)
    if rank:
        compression = compression(int(rank))
    return hvd.DistributedOptimizer(plain, named, compression=compression)


def run_rank(args: argparse.Namespace) -> None:
    """Train with each way; rank 0 writes the seconds and bytes of a step."""
    seat = Seat()
    hvd.init()
    inputs = torch.randn(quantized.SAMPLES, quantized.WIDTHS[0])
    rows = []
    for way in WAYS:
        layers = [torch.nn.Linear(*pair) for pair in pairwise(quantized.WIDTHS)]
        model = torch.nn.Sequential(*(part for each in layers for part in (each, torch.nn.ReLU())))
        named = [(f"{way}.{name}", param) for name, param in model.named_parameters()]
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = wrap(way, torch.optim.SGD(model.parameters(), lr=1e-3), named)
        for number in range(EVERY + STEPS):
            if number == EVERY:  # what happens once has happened
                seat.exchange(None)
                began_s, before = time.perf_counter(), sent_bytes()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        seat.exchange(None)
        took_s, sent = time.perf_counter() - began_s, sent_bytes() - before
        rows.append((way, took_s / STEPS, sent / STEPS))
        seat.say(f"{way} done")
    hvd.shutdown()
    if seat.rank == 0:
        args.result.write_text(json.dumps({"rows": rows}))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2)
    emulated.add_rate_argument(parser)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Print a row for each way."""
    args = parse_args()
    if Config.from_env().size > 1:
        run_rank(args)
        return
    emulated.check_possible()
    shape = emulated.Shape(args.hosts, 1, args.rate_mbit or None)
    found: dict[str, Any] = emulated.run_on_hosts(__file__, sys.argv[1:], shape)
    (_, _, most), *_ = found["rows"]
    print(f"{shape}\n\n| way | seconds of a step | MB that a host sends in it | of `none` |")
    print("|---|---:|---:|---:|")
    for way, step_s, sent in found["rows"]:
        print(f"| {way} | {step_s:.3f} | {sent / 1e6:.3g} | {sent / most:.4f} |")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
