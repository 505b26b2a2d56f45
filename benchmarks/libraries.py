"""The libraries that the benchmarks compare, behind one interface."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol, TypeAlias

import mpich
import psutil
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seat import Seat

LIBRARIES = {"horovod": "Horovod", "gloo": "gloo", "mpi": "Open MPI", "mpich": "MPICH"}


class Library(Protocol):
    """A library under test; sums float32 tensors over all ranks, in place."""

    def barrier(self) -> None:
        """Waits for all ranks, as this library does it."""

    def prepare(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        """Returns the blocking call that reduces ``tensor``.

        Args:
            tensor: contiguous, float32, on the CPU.
            name: what Horovod's ranks agree on.
        """

    def close(self) -> None:
        """Leaves the library's job."""


class HorovodLibrary:
    """Ours, through the adapter for PyTorch."""

    def __init__(self, seat: Seat) -> None:
        import horovod.torch as hvd

        hvd.init()
        self.hvd = hvd

    def barrier(self) -> None:
        self.hvd.barrier()

    def prepare(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        allreduce_, op = self.hvd.allreduce_, self.hvd.Sum
        return lambda: allreduce_(tensor, name=name, op=op)

    def close(self) -> None:
        self.hvd.shutdown()


class GlooLibrary:
    """torch.distributed with gloo, over the interface that the job's store is reached by."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        os.environ["GLOO_SOCKET_IFNAME"] = _interface_of(seat.address)
        # Not a FileStore: that one opens its file once more when it ends, and waits for it if
        # another rank has just removed it.
        options = {"world_size": seat.size, "wait_for_workers": False}
        server = (
            dist.TCPStore(seat.address, 0, is_master=True, **options) if seat.rank == 0 else None
        )
        address, port = seat.exchange((seat.address, server.port if server else 0))[0]
        store = server or dist.TCPStore(address, port, is_master=False, **options)
        dist.init_process_group("gloo", store=store, rank=seat.rank, world_size=seat.size)

    def barrier(self) -> None:
        dist.barrier()

    def prepare(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        return lambda: dist.all_reduce(tensor)

    def close(self) -> None:
        self._seat.exchange("gloo ends")  # rank 0 holds the store of all
        dist.destroy_process_group()


def _interface_of(address: str) -> str:
    """The name of the interface of this host that has the address."""
    for name, entries in psutil.net_if_addrs().items():
        if address in [entry.address for entry in entries]:
            return name
    raise RuntimeError(f"no interface of this host has the address {address}")


class MpiLibrary:
    """Open MPI through mpi4py."""

    def __init__(self, seat: Seat) -> None:
        import mpi4py

        # The cheapest level that allows the threads of the other libraries.
        mpi4py.rc.thread_level = "funneled"
        from mpi4py import MPI

        if MPI.COMM_WORLD.Get_size() != seat.size:
            raise RuntimeError("Open MPI does not see the ranks: start them by mpirun")
        self._mpi = MPI

    def barrier(self) -> None:
        self._mpi.COMM_WORLD.Barrier()

    def prepare(self, tensor: torch.Tensor, name: str) -> Callable[[], object]:
        allreduce, in_place = self._mpi.COMM_WORLD.Allreduce, self._mpi.IN_PLACE
        buffer = [tensor.numpy(), self._mpi.FLOAT]
        return lambda: allreduce(in_place, buffer)

    def close(self) -> None:
        """mpi4py finalises MPI when the process ends."""


Libraries: TypeAlias = dict[str, Library | mpich.MpichLibrary]


def close_libraries(seat: Seat, libraries: Libraries) -> None:
    """Leaves all jobs, once no rank needs them any more."""
    seat.exchange("finished")
    for library in libraries.values():
        library.close()


def open_libraries(names: Sequence[str], seat: Seat) -> Libraries:
    """Joins the job of each library, in the same order on all ranks."""
    classes: dict[str, Callable[[Seat], Library | mpich.MpichLibrary]] = {
        "horovod": HorovodLibrary,
        "gloo": GlooLibrary,
        "mpi": MpiLibrary,
        "mpich": mpich.MpichLibrary,
    }
    return {name: classes[name](seat) for name in names}
