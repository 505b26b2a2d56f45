"""Blocking allreduce of few bytes without an interpreter: the engine, and Open MPI's C interface.

    python benchmarks/latency.py
    python benchmarks/latency.py --bytes 4 1024 --rounds 20

Two programs of the same make take turns, a fraction of a second each: ``native_latency`` of this
project's build with tests, and ``reference/mpi_latency.c``, compiled here by Open MPI's compiler.
Both have two ranks, each on a core of its own as far as the machine has them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import measure

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 600.0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=[4, 64, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=15, help="turns of each program")
    parser.add_argument("--seconds-per-turn", type=float, default=0.2, dest="seconds")
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "native", help="a build with tests"
    )
    return parser.parse_args()


def build_engine(build: Path) -> Path:
    """Brings ``native_latency`` up to date and returns its path."""
    if not (build / "build.ninja").exists():
        options = ("-DHVD_BUILD_TESTS=ON", "-DHVD_BUILD_BINDINGS=OFF")
        _run("cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *options)
    _run("cmake", "--build", str(build), "--target", "native_latency")
    return build / "native" / "benchmarks" / "native_latency"


def build_mpi(directory: str) -> list[str]:
    """Compiles the reference; returns the command that runs it, or nothing without Open MPI."""
    if shutil.which("mpicc") is None or measure.find_mpirun() is None:
        print("without mpicc and mpirun Open MPI is left out", file=sys.stderr)
        return []
    source = ROOT / "benchmarks" / "reference" / "mpi_latency.c"
    program = Path(directory) / "mpi_latency"
    _run("mpicc", "-O2", "-o", str(program), str(source))
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [str(measure.find_mpirun()), *root, "--oversubscribe", "-np", "2", str(program)]


def _run(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def main() -> None:
    args = parse_args()
    with tempfile.TemporaryDirectory(prefix="horovod-latency-") as directory:
        commands = {"Horovod": [str(build_engine(args.build))], "Open MPI": build_mpi(directory)}
        commands = {name: command for name, command in commands.items() if command}
        rows = []
        for num_bytes in args.bytes:
            times: dict[str, list[float]] = {name: [] for name in commands}
            for _ in range(args.rounds):
                for name, command in commands.items():
                    times[name].append(float(_run(*command, str(num_bytes), str(args.seconds))))
            cells = [measure.show_bytes(num_bytes)]
            cells += [
                f"{min(values):.2f} / {statistics.median(values):.2f} µs"
                for values in times.values()
            ]
            if len(times) == 2:
                ours, theirs = times.values()
                ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
                cells.append(f"{statistics.median(ratios):.1f}")
            rows.append(cells)
    header = ["size", *(f"{name} least / median" for name in commands)]
    header += ["Horovod takes times as long"] if len(commands) == 2 else []
    print(measure.table(header, rows))


if __name__ == "__main__":
    main()
