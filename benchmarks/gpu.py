"""Tensors on a GPU: several ranks on one of them through host memory, and what one rank pays.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --np 2 --part staged --max-bytes 67108864

Needs a GPU that PyTorch can use. README.md in this folder says how everything here is measured.

The first part sums a float32 tensor in place over ranks that share a GPU, beside gloo on the same
tensors and beside the limit: the same bytes, copied on every rank from the GPU to pinned memory and
from pinned memory to the GPU at the same time, and nothing else. The second part is a training step
of one rank with DistributedOptimizer beside the same step with the plain optimizer.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import measure
import torch
from libraries import GlooLibrary, HorovodLibrary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT = "limit"
LABELS = {"horovod": "Horovod", "gloo": "gloo", LIMIT: "pinned copies"}
PARTS = ("staged", "overhead")
WIDTH, LAYERS, TOKENS, BATCH = 512, 6, 128, 16


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--min-bytes", type=int, default=64 * 1024)
    parser.add_argument("--max-bytes", type=int, default=256 * measure.MIB)
    measure.add_common_arguments(parser, "size", 6.0)
    parser.set_defaults(libraries=["horovod", "gloo"])
    args = parser.parse_args()
    if not 4 <= args.min_bytes <= args.max_bytes:
        parser.error("--min-bytes is at least 4 and at most --max-bytes")
    return args


@dataclass(frozen=True)
class OnDevice:
    """A contestant whose work has ended when the device has done it.

    Attributes:
        name: as it stands in tables.
        run: puts the work on the current stream.
        barrier: waits for all ranks.
    """

    name: str
    run: Callable[[], object]
    barrier: Callable[[], object]

    def burst(self, num_runs: int) -> float:
        """Seconds for ``num_runs`` runs, one after the other, behind a barrier."""
        torch.cuda.synchronize()
        self.barrier()
        run = self.run
        began = time.perf_counter()
        for _ in range(num_runs):
            run()
        torch.cuda.synchronize()
        return time.perf_counter() - began


# --------------------------------------------------------------------------- ranks on one GPU


def pinned_copies(tensor: torch.Tensor) -> Callable[[], None]:
    """What moves as many bytes as a sum through host memory must, both ways at once."""
    out, back = torch.cuda.Stream(), torch.cuda.Stream()
    host = [torch.empty(tensor.shape, dtype=tensor.dtype).pin_memory() for _ in range(2)]
    target = torch.empty_like(tensor)

    def run() -> None:
        with torch.cuda.stream(out):
            host[0].copy_(tensor, non_blocking=True)
        with torch.cuda.stream(back):
            target.copy_(host[1], non_blocking=True)
        out.synchronize()
        back.synchronize()

    return run


def measure_size(
    seat: measure.Seat, libraries: dict[str, Any], buffer: torch.Tensor, num_bytes: int, s: float
) -> dict[str, Any]:
    """One row of the table."""
    tensor = buffer[: num_bytes // 4]
    contestants = []
    for name, library in libraries.items():
        call = library.prepare(tensor, f"benchmark.{num_bytes}")
        contestant = OnDevice(name, call, library.barrier)
        measure.check_sum(seat, [tensor], contestant)
        contestants.append(contestant)
    barrier = next(iter(libraries.values())).barrier
    contestants.append(OnDevice(LIMIT, pinned_copies(tensor), barrier))
    row = measure.summarize(measure.run_rounds(seat, contestants, s))
    for numbers in row["contestants"].values():
        numbers["algorithm_gb_per_s"] = num_bytes / numbers["median_us"] / 1000
    return {"bytes": num_bytes, **row}


def sizes(min_bytes: int, max_bytes: int) -> list[int]:
    """The powers of four that lie within the limits."""
    return [4**n for n in range(1, 20) if min_bytes <= 4**n <= max_bytes]


def run_rank(seat: measure.Seat, args: argparse.Namespace) -> dict[str, Any]:
    """What each rank does: all of them use the first GPU."""
    torch.cuda.set_device(0)
    classes = {"horovod": HorovodLibrary, "gloo": GlooLibrary}
    libraries = {name: classes[name](seat) for name in args.libraries}
    buffer = torch.zeros(args.max_bytes // 4, device="cuda")
    rows = []
    for num_bytes in sizes(args.min_bytes, args.max_bytes):
        rows.append(measure_size(seat, libraries, buffer, num_bytes, args.seconds))
        times = rows[-1]["contestants"].items()
        shown = ", ".join(f"{name} {measure.show_times(numbers)}" for name, numbers in times)
        seat.say(f"{seat.size} ranks, {measure.show_bytes(num_bytes)}: {shown}")
    measure.close_libraries(seat, libraries)
    return {"np": seat.size, "gpu": torch.cuda.get_device_name(0), "sizes": rows}


# --------------------------------------------------------------------------- one rank


class Network(torch.nn.Module):
    """A small transformer."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True)
        self.body = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The mean of the squares of what comes out."""
        output: torch.Tensor = self.body(x)
        return output.square().mean()


def step_of(wrap: bool, width: int, layers: int, batch: int) -> Callable[[], object]:
    """A training step of a network of its own."""
    import horovod.torch as hvd

    torch.manual_seed(1)
    network = Network(width, layers).to("cuda")
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    if wrap:
        optimizer = hvd.DistributedOptimizer(optimizer, network.named_parameters())
    x = torch.randn(batch, TOKENS, width).to("cuda")

    def step() -> None:
        optimizer.zero_grad()
        network(x).backward()
        optimizer.step()

    return step


def measure_overhead(
    seconds: float, width: int = WIDTH, layers: int = LAYERS, batch: int = BATCH
) -> dict[str, Any]:
    """A step with DistributedOptimizer beside one without, in a job of one rank."""
    import horovod.torch as hvd

    hvd.init()
    contestants = [
        OnDevice("horovod", step_of(True, width, layers, batch), hvd.barrier),
        OnDevice("plain", step_of(False, width, layers, batch), hvd.barrier),
    ]
    row = measure.summarize(measure.run_rounds(measure.Alone(), contestants, seconds))
    hvd.shutdown()
    return {"np": 1, "gpu": torch.cuda.get_device_name(0), "step": row}


# --------------------------------------------------------------------------- tables


def show_run(run: dict[str, Any]) -> str:
    """A run as text."""
    if "step" in run:
        times = run["step"]["contestants"]
        overhead = 100 * (1 / run["step"]["speedup"]["plain"] - 1)
        plain, wrapped = (measure.show_times(times[name]) for name in ("plain", "horovod"))
        return (
            f"1 rank, {run['gpu']}: a step takes {wrapped} with DistributedOptimizer and {plain} "
            f"without: {overhead:+.2f} %\n"
        )
    names = list(run["sizes"][0]["contestants"])
    header = ["size"]
    for name in names:
        header += [f"{LABELS[name]} p10 / median / p90", "GB/s"]
    header += [f"Horovod vs {LABELS[name]}" for name in names[1:]]
    rows = []
    for size in run["sizes"]:
        cells = [measure.show_bytes(size["bytes"])]
        for name in names:
            numbers = size["contestants"][name]
            cells += [measure.show_times(numbers), f"{numbers['algorithm_gb_per_s']:.2f}"]
        cells += [measure.show_ratio(size["speedup"][name]) for name in names[1:]]
        rows.append(cells)
    return f"{run['np']} ranks on one {run['gpu']}\n\n{measure.table(header, rows)}\n"


def start_jobs(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The runs of both parts."""
    if "staged" in args.part:
        for num_ranks in args.np:
            yield measure.run_ranks(__file__, sys.argv[1:], num_ranks, with_mpi=False)
    if "overhead" in args.part:
        yield measure_overhead(args.seconds)


def why_not() -> str:
    """Why nothing can be measured here; empty if it can."""
    if torch.cuda.is_available():
        return ""
    built = "for the CPU only" if torch.version.cuda is None else f"for CUDA {torch.version.cuda}"
    return (
        f"benchmarks/gpu.py needs a GPU: torch.cuda.is_available() is False here (PyTorch "
        f"{torch.__version__}, built {built})"
    )


if __name__ == "__main__":
    arguments = parse_args()
    problem = why_not()
    if problem:
        sys.exit(problem)
    measure.run_benchmark(__file__, arguments, run_rank, show_run, start_jobs)
