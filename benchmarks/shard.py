"""What hvd.shard costs for each batch, and how well it shuffles.

    python benchmarks/shard.py --ranks 2 4

Ranks are processes of this machine. Each loops over samples that cost nothing to read, so that what
is left is the time of the shard: dividing, the exchange of streams, and collating numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import horovod.torch as hvd
from horovod._train.shard.permutation import Permutation
from horovod._train.shard.shard import shuffled
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH_SIZE, STEPS = 32, 300


class Numbers:
    """A stream of numbers, in shards."""

    def __init__(self, count: int, num_shards: int) -> None:
        self.count, self.num_shards = count, num_shards

    def shard(self, num_shards: int, index: int) -> range:
        return range(self.count * index // num_shards, self.count * (index + 1) // num_shards)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def time_steps(kind: str, size: int) -> list[float]:
    """Return the seconds of each step on this rank."""
    hvd.init()
    count = BATCH_SIZE * STEPS * size
    num_shards = size if kind == "stream in shards" else 1
    data: Any = list(range(count)) if kind == "list" else Numbers(count, num_shards)
    shard = hvd.shard(data, BATCH_SIZE, shuffle=kind == "list", collate=list)
    times = []
    began = time.perf_counter()
    for _ in shard:
        ended = time.perf_counter()
        times.append(ended - began)
        began = time.perf_counter()
    return times[10:]


def print_costs(sizes: list[int]) -> None:
    for size in sizes:
        for kind in ("list", "stream in shards", "whole stream"):
            times = run_ranks(size, time_steps, kind, size, processes=True)
            median = statistics.median(times[0])
            print(f"{size} ranks, {kind}: {1e6 * median:.0f} µs for a batch of {BATCH_SIZE}")


def print_quality(order: list[int], what: str) -> None:
    """Print the correlation of place and number, and how many neighbors have stayed neighbors."""
    places = np.arange(len(order))
    correlation = np.corrcoef(places, order)[0, 1]
    neighbors = int((np.abs(np.diff(order)) == 1).sum())
    moved = float(np.mean(np.abs(np.array(order) - places))) / len(order)
    print(
        f"{what}: correlation {correlation:+.4f}, {neighbors} of {len(order) - 1} neighbors stay, "
        f"moved by {moved:.3f} of the length"
    )


def print_shuffling(length: int) -> None:
    print_quality(list(range(length)), "not shuffled")
    print_quality(np.random.default_rng(1).permutation(length).tolist(), "numpy.permutation")
    began = time.perf_counter()
    order = Permutation(length, seed=1)[:]
    each_us = 1e6 * (time.perf_counter() - began) / length
    print_quality(order, f"samples with places ({each_us:.1f} µs each)")
    for num_parts in (1, 64, 1024):
        numbers = Numbers(length, num_parts)
        parts = [numbers.shard(num_parts, i) for i in Permutation(num_parts, seed=1)]
        order = [each for i, part in enumerate(parts) for each in shuffled(iter(part), 1024, i)]
        print_quality(order, f"a stream in {num_parts} parts, buffer=1024")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--length", type=int, default=100_000, help="of the order that is shuffled")
    args = parser.parse_args()
    print_shuffling(args.length)
    print_costs(args.ranks)
    hvd.init()
    shard = hvd.shard(Numbers(10**6, 1000), 32)
    next(iter(shard))
    print(f"state: {len(json.dumps(shard.state_dict()))} bytes with one part begun")


if __name__ == "__main__":
    main()
