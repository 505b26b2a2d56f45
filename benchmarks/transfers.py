"""A tensor from one rank to the other and back: Horovod's send and recv beside those of gloo.

    python benchmarks/transfers.py --np 2

README.md in this folder says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import measure
import torch
import torch.distributed as dist

from horovod._native import Buffer
from horovod._rank import context

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = ("horovod", "gloo")


def horovod_way(seat: measure.Seat, tensor: torch.Tensor) -> Callable[[], None]:
    """Ranks 0 and 1 pass the tensor to each other; others do nothing."""
    group = context.global_group()
    buffer = Buffer(tensor.data_ptr(), "float32", (tensor.numel(),))

    def run() -> None:
        if seat.rank == 0:
            group.send(buffer, 1, waits_next=True).wait()
            group.recv(buffer, 1, waits_next=True).wait()
        elif seat.rank == 1:
            group.recv(buffer, 0, waits_next=True).wait()
            group.send(buffer, 0, waits_next=True).wait()

    return run


def gloo_way(seat: measure.Seat, tensor: torch.Tensor) -> Callable[[], None]:
    """The same with torch.distributed."""

    def run() -> None:
        if seat.rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        elif seat.rank == 1:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)

    return run


def check(seat: measure.Seat, tensor: torch.Tensor, way: measure.TakesTurns) -> None:
    """Nobody is measured who does not bring the tensor.

    Raises:
        RuntimeError: rank 1 does not have what rank 0 sent.
    """
    tensor.fill_(seat.rank)
    way.burst(1)
    if seat.rank < 2 and not bool((tensor == 0).all()):
        raise RuntimeError(f"{way.name} brought a wrong tensor to rank {seat.rank}")


def run_rank(seat: measure.Seat, args: argparse.Namespace) -> dict[str, Any]:
    """What each rank does."""
    machine = measure.measure_machine(seat, min(1.0, args.seconds))
    libraries = measure.open_libraries([name for name in args.libraries if name in WAYS], seat)
    rows = []
    for num_bytes in args.bytes:
        tensor = torch.zeros(num_bytes // 4)
        ways: list[measure.TakesTurns] = []
        for name, run in (("horovod", horovod_way), ("gloo", gloo_way)):
            if name in libraries:
                barrier = libraries[name].barrier
                ways.append(measure.Contestant(name, run(seat, tensor), barrier))
        for way in ways:
            check(seat, tensor, way)
        rows.append(
            {
                "bytes": num_bytes,
                **measure.summarize(measure.run_rounds(seat, ways, args.seconds)),
            }
        )
        seat.say(f"{seat.size} ranks: {measure.show_bytes(num_bytes)} done")
    measure.close_libraries(seat, libraries)
    return {"np": seat.size, "machine": machine, "rows": rows}


def show_run(run: dict[str, Any]) -> str:
    """The table of one number of ranks."""
    rows = []
    for row in run["rows"]:
        for name, numbers in row["contestants"].items():
            speedup = row["speedup"].get(name)
            ratio = "" if speedup is None else measure.show_ratio(speedup)
            size = measure.show_bytes(row["bytes"])
            rows.append([size, name, measure.show_times(numbers), ratio])
    header = ["there and back", "library", "p10 / median / p90", "the first is faster by"]
    title = f"{run['np']} ranks; {measure.show_machine(run['machine'])}"
    return f"{title}\n\n{measure.table(header, rows)}\n"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--bytes", type=int, nargs="+", default=[4, 4096, 65536, measure.MIB, 64 * measure.MIB]
    )
    measure.add_common_arguments(parser, "length", 10.0)
    parser.set_defaults(np=[2], libraries=list(WAYS))
    return parser.parse_args()


if __name__ == "__main__":
    measure.run_benchmark(__file__, parse_args(), run_rank, show_run)
