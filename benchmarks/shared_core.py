"""What a short call costs where processes share a core, so that each finds the core's caches cold.

    python benchmarks/shared_core.py --processes 1 2 4

Each process is a job of one rank, which waits for nobody: it sums 4 bytes, then yields the core to
the next process. All of them are bound to one core. Printed is the processor time of a call with
its yield, the median of the processes, and that of a yield alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

RUN_S = 2.0
PATIENCE_S = 60.0


def run_one() -> None:
    """What each process does, once it is told when to begin."""
    import torch

    import horovod.torch as hvd

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    hvd.init()
    tensor = torch.zeros(1)

    def call() -> None:
        hvd.allreduce_(tensor, name="tensor", op=hvd.Sum)
        os.sched_yield()

    for _ in range(1000):
        call()
    print("ready", flush=True)
    begin_s = float(sys.stdin.readline())
    time.sleep(max(0.0, begin_s - time.time()))
    print(microseconds_of(call), microseconds_of(os.sched_yield), flush=True)


def microseconds_of(call: Callable[[], object]) -> float:
    """Processor time of a call, while the others do the same."""
    number, end_s, before_s = 0, time.time() + RUN_S, time.process_time()
    while time.time() < end_s:
        call()
        number += 1
    return (time.process_time() - before_s) / number * 1e6


def measure(processes: int) -> tuple[float, float]:
    """Microseconds of a call with its yield, and of a yield."""
    command = [sys.executable, __file__, "--one"]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    pipes = [(each.stdin, each.stdout) for each in running]
    for _, answers in pipes:
        assert answers is not None
        answers.readline()
    begin_s = time.time() + 0.5
    for orders, _ in pipes:
        assert orders is not None
        print(begin_s, file=orders, flush=True)
    told = [list(map(float, each.communicate(timeout=PATIENCE_S)[0].split())) for each in running]
    calls, yields = zip(*told, strict=True)
    return statistics.median(calls), statistics.median(yields)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_one()
        return
    print(f"load average before: {os.getloadavg()[0]:.1f}\n")
    print("| processes on one core | call and yield | yield |\n| ---: | ---: | ---: |")
    for processes in args.processes:
        call_us, yield_us = measure(processes)
        print(f"| {processes} | {call_us:.1f} µs | {yield_us:.1f} µs |", flush=True)


if __name__ == "__main__":
    main()
