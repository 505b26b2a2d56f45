"""Allreduce of one tensor: Horovod, gloo, Open MPI and MPICH, taking turns.

    python benchmarks/allreduce.py
    python benchmarks/allreduce.py --np 2 --max-bytes 4096 --libraries horovod,gloo

README.md in this folder says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
from typing import Any

import measure
import torch


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--min-bytes", type=int, default=4)
    parser.add_argument("--max-bytes", type=int, default=256 * measure.MIB)
    measure.add_common_arguments(parser, "size", 6.0)
    args = parser.parse_args()
    if not 4 <= args.min_bytes <= args.max_bytes:
        parser.error("--min-bytes is at least 4 and at most --max-bytes")
    return args


def sizes(min_bytes: int, max_bytes: int) -> list[int]:
    """The powers of four from 4 bytes up that lie within the limits."""
    powers = [4**exponent for exponent in range(1, 20)]
    return [power for power in powers if min_bytes <= power <= max_bytes]


def measure_size(
    seat: measure.Seat,
    libraries: measure.Libraries,
    buffer: torch.Tensor,
    num_bytes: int,
    seconds: float,
) -> dict[str, Any]:
    """One row of the table. All libraries reduce the same memory, private to each process."""
    tensor = buffer[: num_bytes // 4]
    contestants = [
        measure.enter(seat, name, library, [tensor], f"benchmark.{num_bytes}")
        for name, library in libraries.items()
    ]
    row = measure.summarize(measure.run_rounds(seat, contestants, seconds))
    for numbers in row["contestants"].values():
        rate = num_bytes / numbers["median_us"] / 1000
        numbers["algorithm_gb_per_s"] = rate
        numbers["bus_gb_per_s"] = rate * 2 * (seat.size - 1) / seat.size
    return {"bytes": num_bytes, **row}


def run_rank(seat: measure.Seat, args: argparse.Namespace) -> dict[str, Any]:
    """What each rank does."""
    machine = measure.measure_machine(seat, min(1.0, args.seconds))
    libraries = measure.open_libraries(args.libraries, seat)
    buffer = torch.zeros(args.max_bytes // 4)
    rows = []
    for num_bytes in sizes(args.min_bytes, args.max_bytes):
        rows.append(measure_size(seat, libraries, buffer, num_bytes, args.seconds))
        times = rows[-1]["contestants"].items()
        shown = ", ".join(f"{name} {measure.show_times(numbers)}" for name, numbers in times)
        seat.say(f"{seat.size} ranks, {measure.show_bytes(num_bytes)}: {shown}")
    measure.close_libraries(seat, libraries)
    return {"np": seat.size, "machine": machine, "sizes": rows}


def show_run(run: dict[str, Any]) -> str:
    """The table of one number of ranks."""
    names = list(run["sizes"][0]["contestants"])
    labels = [measure.LIBRARIES[name] for name in names]
    header = ["size"]
    for label in labels:
        header += [f"{label} p10 / median / p90", "alg / bus GB/s"]
    header += [f"{labels[0]} vs {label}" for label in labels[1:]]
    rows = []
    for size in run["sizes"]:
        cells = [measure.show_bytes(size["bytes"])]
        for name in names:
            numbers = size["contestants"][name]
            cells.append(measure.show_times(numbers))
            cells.append(f"{numbers['algorithm_gb_per_s']:.2f} / {numbers['bus_gb_per_s']:.2f}")
        cells += [measure.show_ratio(size["speedup"][name]) for name in names[1:]]
        rows.append(cells)
    title = f"{run['np']} ranks; {measure.show_machine(run['machine'])}"
    return f"{title}\n\n{measure.table(header, rows)}\n"


if __name__ == "__main__":
    measure.run_benchmark(__file__, parse_args(), run_rank, show_run)
