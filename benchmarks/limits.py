"""Allreduce inside a host beside the fastest plain loop in C that we know, which bounds it.

    python benchmarks/limits.py --np 2 4

README.md in this folder says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import measure

SOURCE = Path(__file__).parent / "reference" / "limits.c"
KIB = 1024
SIZES = (4, *(4**i * KIB for i in (1, 3, 4)), *(4**i * measure.MIB for i in range(5)))
ROUNDS = 9  # of the loop in each turn
RANK_S = 0.5  # of Horovod in each turn, for each size
PATIENCE_S = 300.0
WAYS = {
    "memcpy": "C loop: memcpy",
    "stream": "past the caches",
    "demote": "cldemote",
    "readv": "process_vm_readv",
}


def compile_loop(folder: Path) -> Path:
    """Compiles the loop for this processor with ``$CC`` or cc."""
    program = folder / "limits"
    options = ["-O3", "-march=native", "-std=gnu11"]
    command = [os.environ.get("CC", "cc"), *options, str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def run_loop(program: Path, num_ranks: int) -> dict[tuple[int, str], float]:
    """Microseconds by number of bytes and way, each with the length of chunks that suits it."""
    command = [str(program), str(num_ranks), str(ROUNDS), *map(str, SIZES)]
    done = subprocess.run(command, check=True, timeout=PATIENCE_S, capture_output=True, text=True)
    best: dict[tuple[int, str], float] = {}
    for line in done.stdout.splitlines():
        num_bytes, way, _, microseconds = line.split()
        key = int(num_bytes), way
        best[key] = min(best.get(key, float("inf")), float(microseconds))
    return best


def run_rank(answer: Path) -> None:
    """What each rank of Horovod does; rank 0 writes the microseconds by number of bytes."""
    import torch

    import horovod.torch as hvd

    hvd.init()
    medians = {}
    for num_bytes in SIZES:
        tensor, times_us = torch.zeros(num_bytes // 4), []
        begin = time.perf_counter()
        go_on = torch.ones(1)
        while go_on.item():
            for _ in range(10):
                before = time.perf_counter()
                hvd.allreduce_(tensor, name=f"of.{num_bytes}", op=hvd.Sum)
                times_us.append((time.perf_counter() - before) * 1e6)
            go_on[0] = float(time.perf_counter() - begin < RANK_S)
            hvd.broadcast_(go_on, 0, name="go on")
        medians[num_bytes] = statistics.median(times_us[len(times_us) // 10 :])
    if hvd.rank() == 0:
        answer.write_text(json.dumps(medians))


def run_horovod(answer: Path, num_ranks: int) -> dict[int, float]:
    """Microseconds of Horovod's allreduce by number of bytes."""
    launcher = [sys.executable, "-m", "horovod.runner.cli", "-np", str(num_ranks)]
    command = [*launcher, sys.executable, __file__, "--rank", str(answer)]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    return {int(key): value for key, value in json.loads(answer.read_text()).items()}


def show_us(microseconds: float) -> str:
    """With a decimal below 100."""
    return f"{microseconds:,.1f}" if microseconds < 100 else f"{microseconds:,.0f}"


def show(num_ranks: int, times: dict[tuple[int, str], list[float]]) -> str:
    """The table of one number of ranks."""
    rows = []
    for num_bytes in SIZES:
        of = {way: statistics.median(times[num_bytes, way]) for way in ("horovod", *WAYS)}
        least = min(of[way] for way in WAYS)
        cells = [measure.show_bytes(num_bytes), *map(show_us, of.values())]
        rows.append([*cells, f"{of['horovod'] / least:.2f}"])
    header = ["size", "Horovod", *WAYS.values(), "Horovod / fastest loop"]
    return f"{num_ranks} ranks, µs\n\n{measure.table(header, rows)}\n"


def main() -> None:
    """Reads the command line."""
    if sys.argv[1:2] == ["--rank"]:
        run_rank(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--np", type=int, nargs="+", default=[2, 4], help="numbers of ranks")
    parser.add_argument("--turns", type=int, default=5, help="of the loop and of Horovod")
    args = parser.parse_args()
    if args.turns < 1 or min(args.np) < 2:
        parser.error("give at least one turn and two ranks")
    with tempfile.TemporaryDirectory(prefix="horovod-limits-") as name:
        program, answer = compile_loop(Path(name)), Path(name) / "answer.json"
        for num_ranks in args.np:
            times: dict[tuple[int, str], list[float]] = defaultdict(list)
            for _ in range(args.turns):
                for key, microseconds in run_loop(program, num_ranks).items():
                    times[key].append(microseconds)
                for num_bytes, microseconds in run_horovod(answer, num_ranks).items():
                    times[num_bytes, "horovod"].append(microseconds)
            print(show(num_ranks, times), flush=True)


if __name__ == "__main__":
    main()
