"""Allreduce of many tensors, as a training step has them: Horovod and its peers in turn.

    python benchmarks/many_tensors.py

README.md in this folder says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

import measure
import torch
import torch.distributed as dist
import torch.utils.dlpack

from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM
from horovod._train.bucket_plan import Sized, plan_buckets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BUCKET_BYTES = 25 * measure.MIB
WAYS = {
    "horovod": "Horovod, asynchronous",
    "horovod-views": "Horovod, bucket views",
    "gloo": "gloo, one by one",
    "gloo-buckets": "gloo, 25 MiB buckets",
    "mpi": "Open MPI, one by one",
    "mpich": "MPICH, one by one",
}


def resnet50_shapes() -> Iterator[tuple[int, ...]]:
    """The shapes of ResNet-50's 161 parameters in the order of the forward pass."""

    def convolution(num_in: int, num_out: int, kernel: int) -> Iterator[tuple[int, ...]]:
        yield num_out, num_in, kernel, kernel
        yield from ((num_out,), (num_out,))  # weight and bias of the batch norm behind it

    yield from convolution(3, 64, 7)
    num_in = 64
    for num_blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(num_blocks):
            yield from convolution(num_in, width, 1)
            yield from convolution(width, width, 3)
            yield from convolution(width, 4 * width, 1)
            if block == 0:  # the shortcut changes the number of channels
                yield from convolution(num_in, 4 * width, 1)
            num_in = 4 * width
    yield from ((1000, num_in), (1000,))


def workloads(max_bytes: int) -> dict[str, list[int]]:
    """By name the number of float32 elements of each tensor; larger workloads are left out."""
    resnet = [math.prod(shape) for shape in resnet50_shapes()]
    # Gradients become ready from the last layer to the first.
    all_workloads = {"500 x 4 KiB": [1024] * 500, "ResNet-50": resnet[::-1]}
    return {name: counts for name, counts in all_workloads.items() if 4 * sum(counts) <= max_bytes}


def horovod_way(tensors: Sequence[torch.Tensor], workload: str) -> Callable[[], None]:
    """Submits all tensors by name, then waits for all."""
    import horovod.torch as hvd

    names = [f"{workload}.{index}" for index in range(len(tensors))]

    def run() -> None:
        handles = [
            hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)
            for tensor, name in zip(tensors, names, strict=True)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    return run


class BucketViews:
    """Tensors that live in buckets in shared memory, as gradients of DistributedOptimizer do."""

    def __init__(self, counts: Sequence[int], workload: str) -> None:
        sizes = [Sized((index,), (4 * count,), "float32") for index, count in enumerate(counts)]
        plan = plan_buckets(sizes)
        self._group = context.global_group()
        num_bytes = plan[-1].offset + plan[-1].num_bytes
        handle = self._group.share_memory(num_bytes, name=f"{workload}.views")
        handle.wait()
        (memory,) = handle.results()
        self.tensors: list[torch.Tensor] = []
        self._buckets = []
        for bucket in plan:
            whole = memory.part(bucket.offset, "float32", (bucket.num_bytes // 4,))
            name = f"{workload}.views.{bucket.items[0]}"
            self._buckets.append((Buffer(whole.address, whole.dtype, whole.shape), name))
            for index, offset in zip(bucket.items, bucket.offsets, strict=True):
                part = memory.part(bucket.offset + offset, "float32", (counts[index],))
                self.tensors.append(torch.utils.dlpack.from_dlpack(part))

    def run(self) -> None:
        """Submits all buckets, then waits for all."""
        handles = [
            self._group.allreduce([buffer], [buffer], PLAIN_SUM, name=name)
            for buffer, name in self._buckets
        ]
        for handle in handles:
            handle.wait()


def gloo_way(tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Starts all tensors, then waits for all."""

    def run() -> None:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()

    return run


def bucket_way(tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """As DistributedDataParallel does: copies into buckets, reduces these, and copies back."""
    buckets = [_Bucket(part) for part in split(tensors, BUCKET_BYTES)]

    def run() -> None:
        for bucket in buckets:
            bucket.start()
        for bucket in buckets:
            bucket.finish()

    return run


def split(tensors: Sequence[torch.Tensor], max_bytes: int) -> list[list[torch.Tensor]]:
    """Consecutive parts of at most ``max_bytes``, or of one tensor that is larger."""
    parts: list[list[torch.Tensor]] = []
    room = 0
    for tensor in tensors:
        if not parts or tensor.nbytes > room:
            parts.append([])
            room = max_bytes
        parts[-1].append(tensor)
        room -= tensor.nbytes
    return parts


class _Bucket:
    """A flat tensor and the gradients that travel in it."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors
        self._flat = torch.empty(sum(tensor.numel() for tensor in tensors))
        self._views = list(torch.split(self._flat, [tensor.numel() for tensor in tensors]))
        self._work: Any = None

    def start(self) -> None:
        # One call for all tensors, as their number would otherwise cost Python's time.
        torch._foreach_copy_(self._views, self._tensors)
        self._work = dist.all_reduce(self._flat, async_op=True)

    def finish(self) -> None:
        self._work.wait()
        torch._foreach_copy_(self._tensors, self._views)


def contestants_of(
    seat: measure.Seat,
    libraries: measure.Libraries,
    tensors: Sequence[torch.Tensor],
    workload: str,
) -> list[measure.TakesTurns]:
    """The ways of the given libraries to reduce ``tensors``; their sums have been checked."""
    ways: list[tuple[str, str, Callable[[], None]]] = []
    if "horovod" in libraries:
        ways.append(("horovod", "horovod", horovod_way(tensors, workload)))
    if "gloo" in libraries:
        ways.append(("gloo", "gloo", gloo_way(tensors)))
        ways.append(("gloo-buckets", "gloo", bucket_way(tensors)))
    contestants: list[measure.TakesTurns] = []
    for name, library, run in ways:
        contestant = measure.Contestant(name, run, libraries[library].barrier)
        measure.check_sum(seat, tensors, contestant)
        contestants.append(contestant)
    for name in ("mpi", "mpich"):
        if name in libraries:
            contestants.append(measure.enter(seat, name, libraries[name], tensors, workload))
    return contestants


def measure_workload(
    seat: measure.Seat,
    libraries: measure.Libraries,
    workload: str,
    counts: list[int],
    seconds: float,
) -> dict[str, Any]:
    """One row of the table; all ways reduce the same tensors, private to each process."""
    tensors = [torch.empty(count) for count in counts]
    contestants = contestants_of(seat, libraries, tensors, workload)
    if "horovod" in libraries:
        views = BucketViews(counts, workload)
        in_buckets = measure.Contestant("horovod-views", views.run, libraries["horovod"].barrier)
        measure.check_sum(seat, views.tensors, in_buckets)
        contestants.insert(1, in_buckets)
    row = measure.summarize(measure.run_rounds(seat, contestants, seconds))
    return {"workload": workload, "tensors": len(counts), "bytes": 4 * sum(counts), **row}


def run_rank(seat: measure.Seat, args: argparse.Namespace) -> dict[str, Any]:
    """What each rank does."""
    machine = measure.measure_machine(seat, min(1.0, args.seconds))
    libraries = measure.open_libraries(args.libraries, seat)
    rows = []
    for name, counts in workloads(args.max_bytes).items():
        rows.append(measure_workload(seat, libraries, name, counts, args.seconds))
        seat.say(f"{seat.size} ranks: {name} done")
    measure.close_libraries(seat, libraries)
    return {"np": seat.size, "machine": machine, "workloads": rows}


def show_run(run: dict[str, Any]) -> str:
    """The table of one number of ranks."""
    rows = []
    for row in run["workloads"]:
        what = f"{row['workload']} ({row['tensors']}, {measure.show_bytes(row['bytes'])})"
        for name, numbers in row["contestants"].items():
            speedup = row["speedup"].get(name)
            ratio = "" if speedup is None else measure.show_ratio(speedup)
            rows.append([what, WAYS[name], measure.show_times(numbers), ratio])
    first = next(iter(run["workloads"][0]["contestants"])) if rows else "horovod"
    header = ["tensors", "way", "p10 / median / p90", f"{WAYS[first].split(',')[0]} is faster by"]
    title = f"{run['np']} ranks; {measure.show_machine(run['machine'])}"
    return f"{title}\n\n{measure.table(header, rows)}\n"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--max-bytes", type=int, default=256 * measure.MIB, help="leave larger workloads out"
    )
    measure.add_common_arguments(parser, "workload", 15.0)
    return parser.parse_args()


if __name__ == "__main__":
    measure.run_benchmark(__file__, parse_args(), run_rank, show_run)
