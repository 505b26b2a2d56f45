"""Starts many ranks on this machine, without a framework, and waits for one allreduce of all.

    python benchmarks/many_ranks.py
    python benchmarks/many_ranks.py --ranks 64 256 --rounds 5

A rank is a Python with NumPy. What is measured is what a user waits for: from the start of
``horovodrun`` to its end. Each rank also tells how long it took to import, to
find and connect to the others, and to reduce.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time

TIMEOUT_S = 300.0
STAGES = ("import", "connect", "allreduce", "shutdown")

RANK = """
import time
times = [time.monotonic()]
import numpy as np
from horovod._rank import context
from horovod._native import Buffer
from horovod._rank.reduction import PLAIN_SUM
times.append(time.monotonic())
context.init()
times.append(time.monotonic())
group = context.global_group()
values = np.full(1000, group.rank, np.float32)
buffer = Buffer.from_array(values)
group.allreduce([buffer], [buffer], PLAIN_SUM, name="x", waits_next=True).wait(60)
assert (values == sum(range(group.size))).all(), values
times.append(time.monotonic())
context.shutdown()
times.append(time.monotonic())
print("seconds", *(f"{b - a:.3f}" for a, b in zip(times, times[1:])), flush=True)
"""


def run(num_ranks: int) -> tuple[float, list[list[float]]]:
    """Runs one job; returns the seconds that it took, and those of each rank's stages."""
    began_s = time.monotonic()
    # The first rank waits until the last one has got its turn on a core.
    words = ["-np", str(num_ranks), "--start-timeout", "200", sys.executable, "-c", RANK]
    done = subprocess.run(
        [sys.executable, "-m", "horovod.runner.cli", *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    took_s = time.monotonic() - began_s
    stages = [
        [float(number) for number in line.split()]
        for line in re.findall(r"<stdout>:seconds (.*)", done.stdout)
    ]
    if done.returncode != 0 or len(stages) != num_ranks:
        sys.exit(f"the job of {num_ranks} ranks failed:\n{done.stderr[-4000:]}")
    return took_s, stages


def main() -> None:
    """Prints a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; median of {args.rounds} rounds")
    for num_ranks in args.ranks:
        rounds = [run(num_ranks) for _ in range(args.rounds)]
        seconds = [took_s for took_s, _ in rounds]
        medians = [
            statistics.median(rank[i] for _, ranks in rounds for rank in ranks)
            for i in range(len(STAGES))
        ]
        stages = ", ".join(f"{name} {s:.2f} s" for name, s in zip(STAGES, medians, strict=True))
        print(
            f"{num_ranks:4} ranks: {statistics.median(seconds):6.2f} s "
            f"({min(seconds):.2f} to {max(seconds):.2f}); of a rank: {stages}",
            flush=True,
        )


if __name__ == "__main__":
    main()
