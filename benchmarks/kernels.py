"""The kernels of a wheel against those of a native build, in turns: ``native_kernels`` of both.

    python benchmarks/kernels.py
    python benchmarks/kernels.py --rounds 30 --isa avx2

Wheels are compiled by zig's clang (``make wheel`` installs it), ``pip install .`` by the compiler
of this machine. The script builds the program once with each, in folders below ``build``. It prints
the median of each operation over all rounds, and their ratio: above 1, the wheel is slower.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 1200.0
BUILDS = {"native": (), "wheel": (f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/wheels/manylinux.cmake",)}

Times = dict[tuple[str, str], list[float]]


def main() -> None:
    args = parse_args()
    programs = {name: build(name, *options) for name, options in BUILDS.items()}
    times: dict[str, Times] = {name: {} for name in programs}
    for turn in range(args.rounds):
        # The one that goes first in a round may find a cooler processor.
        for name in list(programs) if turn % 2 else reversed(list(programs)):
            for key, value in measured(programs[name], args.seconds, args.isa):
                times[name].setdefault(key, []).append(value)
    print(table(times["native"], times["wheel"]))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="turns of each program")
    parser.add_argument(
        "--seconds", type=float, default=0.005, help="for each operation of a round"
    )
    parser.add_argument("--isa", choices=("avx512", "avx2", "base"), help="else the best one")
    return parser.parse_args()


def build(name: str, *options: str) -> Path:
    """Brings the program of one build up to date and returns its path."""
    folder = ROOT / "build" / f"kernels-{name}"
    if not (folder / "build.ninja").exists():
        parts = ("-DHVD_BUILD_TESTS=ON", "-DHVD_BUILD_BINDINGS=OFF", *options)
        _run("cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *parts)
    _run("cmake", "--build", str(folder), "--target", "native_kernels")
    return folder / "native" / "benchmarks" / "native_kernels"


def measured(program: Path, seconds: float, isa: str | None) -> list[tuple[tuple[str, str], float]]:
    """Returns pairs of (dtype, operation) and microseconds."""
    lines = _run(str(program), str(seconds), *([isa] if isa else [])).splitlines()
    return [((dtype, operation), float(value)) for dtype, operation, value in map(str.split, lines)]


def table(native: Times, wheel: Times) -> str:
    """Returns the table in Markdown, the slowest of the wheel first."""
    rows = []
    for (dtype, operation), values in native.items():
        medians = statistics.median(values), statistics.median(wheel[dtype, operation])
        rows.append((medians[1] / medians[0], dtype, operation, *medians))
    lines = ["| dtype | operation | native, µs | wheel, µs | ratio |", "|---|---|---|---|---|"]
    for ratio, dtype, operation, ours, theirs in sorted(rows, reverse=True):
        lines.append(f"| {dtype} | {operation} | {ours:.1f} | {theirs:.1f} | {ratio:.2f} |")
    return "\n".join(lines)


def _run(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if ended.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    main()
