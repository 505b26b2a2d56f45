"""Allreduce inside a host beside a plain loop in C, for private memory and for shared memory.

    python benchmarks/shared_memory.py

README.md in this folder says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measure
import torch
import torch.utils.dlpack

from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(__file__).parent / "reference" / "allreduce.c"
PROGRESS_BYTES = 4096
CHUNK_BYTES = 64 * 1024
WAYS = {
    "private": "Horovod, private",
    "loop-private": "C loop, private",
    "shared": "Horovod, in shared memory",
    "loop-shared": "C loop, in shared memory",
}


def compile_reference() -> ctypes.CDLL:
    """Compiles the loop for this processor with ``$CC`` or cc."""
    with tempfile.TemporaryDirectory(prefix="horovod-reference-") as directory:
        library = str(Path(directory) / "reference.so")
        compiler = os.environ.get("CC", "cc")
        options = ["-O3", "-march=native", "-std=c11", "-shared", "-fPIC"]
        subprocess.run([compiler, *options, str(SOURCE), "-o", library], check=True)
        loop = ctypes.CDLL(library)
    loop.allreduce_private.restype = ctypes.c_ulong
    return loop


class Reference:
    """The loop, with memory that the processes open by the number of a descriptor."""

    def __init__(self, seat: measure.Seat, max_bytes: int) -> None:
        self._seat = seat
        self._loop = compile_reference()
        rooms = PROGRESS_BYTES + 2 * seat.size * CHUNK_BYTES
        progress = self._map(PROGRESS_BYTES * 2)
        self._progress = [progress[0], progress[0] + PROGRESS_BYTES]
        self._rooms = (ctypes.c_void_p * seat.size)(*self._map(rooms))
        self._arrays = (ctypes.c_void_p * seat.size)(*self._map(max_bytes))
        self._round = self._chunks = 0
        memory = (ctypes.c_float * (max_bytes // 4)).from_address(self._arrays[seat.rank] or 0)
        self.tensor = torch.frombuffer(memory, dtype=torch.float32)

    def _map(self, num_bytes: int) -> list[int]:
        """Addresses of all ranks' memory of this length."""
        descriptor = os.memfd_create("reference")
        os.ftruncate(descriptor, num_bytes)
        places = self._seat.exchange([os.getpid(), descriptor])
        addresses = []
        for pid, number in places:
            peer = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
            mapped = mmap.mmap(peer, num_bytes)  # stays until the process ends
            mapped[::4096] = bytes(len(mapped[::4096]))
            os.close(peer)
            view = ctypes.c_char.from_buffer(mapped)
            self.__dict__.setdefault("_mapped", []).append((mapped, view))
            addresses.append(ctypes.addressof(view))
        self._seat.exchange("mapped")
        os.close(descriptor)
        return addresses

    def shared(self, count: int) -> Callable[[], None]:
        """Reduces the first elements of ``self.tensor``."""
        rank, size = self._seat.rank, self._seat.size
        progress = ctypes.c_void_p(self._progress[0])

        def run() -> None:
            self._round += 1
            self._loop.allreduce_shared(
                self._arrays,
                progress,
                rank,
                size,
                ctypes.c_size_t(count),
                ctypes.c_ulong(self._round),
            )

        return run

    def private(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Reduces a tensor of this process."""
        rank, size = self._seat.rank, self._seat.size
        progress = ctypes.c_void_p(self._progress[1])
        data, count = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.numel())

        def run() -> None:
            chunks = ctypes.c_ulong(self._chunks)
            self._chunks = self._loop.allreduce_private(
                data, self._rooms, progress, rank, size, count, chunks
            )

        return run


def shared_tensor(max_bytes: int) -> torch.Tensor:
    """A tensor in Horovod's shared memory."""
    handle = context.global_group().share_memory(max_bytes, name="benchmark")
    handle.wait()
    part = handle.results()[0].part(0, "float32", (max_bytes // 4,))
    return torch.utils.dlpack.from_dlpack(part)


def horovod_way(tensor: torch.Tensor, name: str) -> Callable[[], object]:
    group, buffers = context.global_group(), [Buffer(tensor.data_ptr(), "float32", tensor.shape)]

    def run() -> None:
        group.allreduce(buffers, buffers, PLAIN_SUM, name=name, waits_next=True).wait()

    return run


def run_rank(seat: measure.Seat, args: argparse.Namespace) -> dict[str, Any]:
    """What each rank does."""
    machine = measure.measure_machine(seat, min(1.0, args.seconds))
    libraries = measure.open_libraries(["horovod"], seat)
    barrier = libraries["horovod"].barrier
    reference = Reference(seat, args.max_bytes)
    private, shared = torch.zeros(args.max_bytes // 4), shared_tensor(args.max_bytes)
    rows = []
    num_bytes = args.min_bytes
    while num_bytes <= args.max_bytes:
        count = num_bytes // 4
        mine, ours, loops = private[:count], shared[:count], reference.tensor[:count]
        runs: dict[str, tuple[torch.Tensor, Callable[[], object]]] = {
            "private": (mine, horovod_way(mine, f"private.{num_bytes}")),
            "loop-private": (mine, reference.private(mine)),
            "shared": (ours, horovod_way(ours, f"shared.{num_bytes}")),
            "loop-shared": (loops, reference.shared(count)),
        }
        contestants = [measure.Contestant(name, run, barrier) for name, (_, run) in runs.items()]
        for contestant in contestants:
            measure.check_sum(seat, [runs[contestant.name][0]], contestant)
        rounds = measure.run_rounds(seat, contestants, args.seconds)
        # Each rank adds a share: as long as that takes, no way is faster.
        bound_us = num_bytes / machine["add_gb_per_s"] / 1000
        rows.append({"bytes": num_bytes, "bound_us": bound_us, **measure.summarize(rounds)})
        num_bytes *= 4
    measure.close_libraries(seat, libraries)
    return {"np": seat.size, "machine": machine, "sizes": rows}


def show_run(run: dict[str, Any]) -> str:
    """The table of one number of ranks."""
    rows = []
    for row in run["sizes"]:
        of = row["contestants"]
        cells = [measure.show_bytes(row["bytes"])]
        cells += [measure.show_times(of[way]) for way in WAYS]
        for way in ("private", "shared"):
            cells.append(f"{100 * of[f'loop-{way}']['median_us'] / of[way]['median_us']:.0f} %")
        cells.append(f"{100 * row['bound_us'] / of['shared']['median_us']:.0f} %")
        rows.append(cells)
    header = [
        "size",
        *WAYS.values(),
        "speed of the loop: private",
        "shared",
        "of the bound: shared",
    ]
    title = f"{run['np']} ranks; {measure.show_machine(run['machine'])}; p10 / median / p90"
    return f"{title}\n\n{measure.table(header, rows)}\n"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--min-bytes", type=int, default=measure.MIB)
    parser.add_argument("--max-bytes", type=int, default=256 * measure.MIB)
    measure.add_common_arguments(parser, "size", 6.0)
    parser.set_defaults(np=[2], libraries=["horovod"])
    return parser.parse_args()


if __name__ == "__main__":
    measure.run_benchmark(__file__, parse_args(), run_rank, show_run)
