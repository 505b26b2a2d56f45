"""Output: how fast what a rank prints comes through the launcher, with prefixes.

    python benchmarks/output.py --rounds 5

A rank writes blocks of one shape as fast as they are taken; this process reads what the launcher
writes to its stdout, and takes the time from the first to the last of it. Every round runs each
launcher once, in turn: ``horovodrun``, and ``torchrun`` with ``--tee``, whose launcher reads again
what the rank has written to a file. Beside the rates stands the processor time of all processes of
the job for each megabyte, less that of a job that prints nothing; other programs disturb it less.
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
from pathlib import Path

LAUNCHERS = ("horovodrun", "torchrun")
RANK = """
import os, sys
line = b"x" * (int(sys.argv[1]) - 1) + b"\\n"
block = line * max(1, 60000 // len(line))
for _ in range(int(float(sys.argv[2]) * 1e6) // len(block)): os.write(1, block)
"""
# Name, bytes of a line, megabytes for each launcher.
SHAPES = (
    ("long lines (60 kB)", 60_000, {"horovodrun": 500, "torchrun": 200}),
    ("lines of 100 bytes", 100, {"horovodrun": 200, "torchrun": 40}),
    ("lines of 20 bytes", 20, {"horovodrun": 100, "torchrun": 10}),
)


def command(launcher: str, program: Path, folder: str) -> list[str]:
    """The words in front of those of the rank."""
    if launcher == "horovodrun":
        return [
            *(sys.executable, "-m", "horovod.runner.cli", "-np", "1"),
            sys.executable,
            str(program),
        ]
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"),
        *("--tee=3", f"--log-dir={folder}", str(program)),
    ]


def measure(launcher: str, program: Path, line_bytes: int, megabytes: float) -> tuple[float, float]:
    """Runs one job; returns seconds from its first to its last output, and of processor time."""
    used = os.times()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [*command(launcher, program, folder), str(line_bytes), str(megabytes)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        assert process.stdout is not None
        num_bytes, began_s, ended_s = 0, 0.0, 0.0
        with open(process.stdout.fileno(), "rb", buffering=0, closefd=False) as reader:
            while data := reader.read(1 << 20):
                began_s = began_s or time.monotonic()
                num_bytes += len(data)
                ended_s = time.monotonic()
        code = process.wait()
    if code != 0 or num_bytes < 0.95e6 * megabytes:
        raise SystemExit(f"{launcher} ended with code {code} after {num_bytes} bytes")
    now = os.times()
    used_s = now.children_user + now.children_system - used.children_user - used.children_system
    return ended_s - began_s, used_s


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--launchers", type=lambda text: text.split(","), default=list(LAUNCHERS))
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    args = parser.parse_args()
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "rank.py"
        program.write_text(RANK)
        for number in range(args.rounds):
            turn = number % len(args.launchers)
            for launcher in args.launchers[turn:] + args.launchers[:turn]:
                idle_s = measure(launcher, program, 100, 0)[1]
                for name, line_bytes, amounts in SHAPES:
                    megabytes = amounts[launcher]
                    took_s, used_s = measure(launcher, program, line_bytes, megabytes)
                    row = (megabytes / took_s, max(0.0, used_s - idle_s) / megabytes)
                    found.setdefault(name, {}).setdefault(launcher, []).append(row)
    print(f"{args.rounds} rounds, load average {os.getloadavg()[0]:.1f}; medians")
    print("| shape | launcher | MB/s | million lines/s | processor time |")
    print("| --- | --- | ---: | ---: | ---: |")
    for name, line_bytes, _ in SHAPES:
        for launcher, rows in found[name].items():
            rate = statistics.median(row[0] for row in rows)
            cost = statistics.median(row[1] for row in rows)
            lines = rate / line_bytes
            print(f"| {name} | {launcher} | {rate:.0f} | {lines:.3f} | {1e3 * cost:.1f} ms/MB |")
    if args.json:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
