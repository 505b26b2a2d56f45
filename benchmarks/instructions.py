"""Instructions of one allreduce from Python to finished, counted by Valgrind: no clock, no noise.

    python benchmarks/instructions.py
    python benchmarks/instructions.py --way torch
    python benchmarks/instructions.py --way many --functions 30

A job of one rank does everything but wait for others: Python, the bindings, submission,
negotiation, execution and completion. Callgrind counts two runs, of few calls and of more; the
difference, divided by the number of further calls, is what one call costs. ``call`` submits 4 bytes
and waits; ``torch`` is the same from ``hvd.allreduce_`` on, which takes minutes; ``many`` submits
500 tensors of 4 KiB, then waits for all, and is counted per tensor. Of ``many`` the number varies a
little, as the engine's thread takes part. The last lines are wake-ups and passes of the engine
without Valgrind.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_TENSORS = 500
# Runs of each way, few and more.
RUNS = {"call": (500, 1500), "torch": (500, 1500), "many": (4, 8)}
TENSORS = {"call": 1, "torch": 1, "many": NUM_TENSORS}
_LINE = re.compile(r"^\s*([\d,]+) \([^)]*\)\s+(\S.*)$")


def make_work(way: str) -> tuple[Callable[[], None], Any]:
    """What is counted, and the engine that does it."""
    # Its idle threads would be counted.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    if way == "torch":
        return make_work_of_torch()
    import numpy as np

    from horovod import _native
    from horovod._rank.group import Group
    from horovod._rank.reduction import PLAIN_SUM

    (engine,) = _native.make_world(1)
    group = Group(engine, 0, [0])
    count = 1 if way == "call" else 1024
    arrays = [np.zeros(count, np.float32) for _ in range(TENSORS[way])]
    names = [f"tensor.{index}" for index in range(len(arrays))]
    # Not in each round: NumPy makes objects of ctypes for it, which took a quarter of all that was
    # counted.
    addresses = [array.ctypes.data for array in arrays]

    def submit(index: int, waits_next: bool) -> Any:
        buffers = [_native.Buffer(addresses[index], "float32", arrays[index].shape)]
        return group.allreduce(
            buffers,
            buffers,
            PLAIN_SUM,
            name=names[index],
            waits_next=waits_next,
            call_site="train.py:1",
            keep=arrays[index],
        )

    def call() -> None:
        submit(0, True).wait()

    def many() -> None:
        handles = [submit(index, False) for index in range(len(arrays))]
        for handle in handles:
            handle.wait()

    return (call if way == "call" else many), engine


def make_work_of_torch() -> tuple[Callable[[], None], Any]:
    """As make_work(), through the adapter of PyTorch."""
    import torch

    import horovod.torch as hvd
    from horovod._rank import context

    hvd.init()
    tensor = torch.zeros(1)

    def call() -> None:
        hvd.allreduce_(tensor, op=hvd.Sum, name="tensor.0")

    return call, context.global_group().engine


def run_here(way: str, num_runs: int) -> None:
    """What Valgrind watches; prints what the system and the engine counted."""
    work, engine = make_work(way)
    work()
    before = resource.getrusage(resource.RUSAGE_SELF)
    passes = engine.statistics()["passes"]
    for _ in range(num_runs):
        work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    tensors = num_runs * TENSORS[way]
    sleeps = (after.ru_nvcsw - before.ru_nvcsw) / tensors
    per_tensor = (engine.statistics()["passes"] - passes) / tensors
    print(f"per tensor: {sleeps:.3f} sleeps of a thread, {per_tensor:.3f} passes of the engine")
    engine.close()


def count(way: str, num_runs: int, folder: Path) -> Counter[str]:
    """Instructions by function, of which one that calls others has its own alone."""
    out = folder / f"{num_runs}.out"
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
    own = [sys.executable, __file__, "--here", str(num_runs), "--way", way]
    subprocess.run([*valgrind, *own], check=True, capture_output=True)
    annotate = ["callgrind_annotate", "--threshold=100", "--show-percs=yes", str(out)]
    text = subprocess.run(annotate, check=True, capture_output=True, text=True).stdout
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        if found := _LINE.match(line):
            name = found[2].removeprefix("???:")
            counts[name] += int(found[1].replace(",", ""))
    return counts


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=tuple(RUNS), default="call")
    parser.add_argument("--functions", type=int, default=20, help="how many to list")
    parser.add_argument("--here", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        run_here(args.way, args.here)
        return
    few, more = RUNS[args.way]
    with tempfile.TemporaryDirectory(prefix="horovod-instructions-") as folder:
        first, second = (count(args.way, runs, Path(folder)) for runs in (few, more))
    second.subtract(first)
    further = (more - few) * TENSORS[args.way]
    total = second.pop("PROGRAM TOTALS", sum(second.values()))
    print(f"{args.way}: {total / further:,.0f} instructions per tensor\n")
    for name, number in second.most_common(args.functions):
        print(f"{number / further:10,.0f}  {name}")
    print(flush=True)
    own = [sys.executable, __file__, "--way", args.way, "--here", str(100 * few)]
    subprocess.run(own, check=True)


if __name__ == "__main__":
    main()
