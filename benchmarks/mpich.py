"""MPICH as a further contestant: a job of its own, whose ranks work when it is their turn.

Two implementations of MPI cannot live in one process. So rank 0 starts MPICH's mpiexec, which
starts as many processes as the benchmark has ranks; these wait at the benchmark's store for the
next thing to do, and sleep meanwhile. While they work the ranks of the benchmark wait at the store
in turn, so that only one of the two jobs uses the machine at a time.

    python -m pip install --prefix .venv/mpich mpich

The wheel goes into a folder of its own, as it brings an mpirun as Open MPI's does.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod._rendezvous import StoreClient, read_secret
from horovod._settings.config import Config, inherited_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seat import Seat

END_TIMEOUT_S = 10.0
ORDER_TIMEOUT_S = 1800.0
ANSWER_TIMEOUT_S = 300.0

# The seat of a rank puts its own in front.
_PREFIX = "benchmark/mpich"


def find_folder() -> Path | None:
    """Where MPICH and mpi4py can be used from, or None."""
    folder = Path(sys.prefix) / "mpich"
    usable = (folder / "bin" / "mpiexec").exists() and importlib.util.find_spec("mpi4py")
    return folder if usable else None


def installed_version() -> str | None:
    """The version of the package in its folder, or None."""
    found = (Path(sys.prefix) / "mpich").glob("lib/python*/site-packages/mpich-*.dist-info")
    return next((path.name.split("-")[1].removesuffix(".dist") for path in found), None)


class MpichLibrary:
    """The benchmark's end of MPICH's job; every rank of the benchmark holds one.

    Args:
        seat: of this rank.

    Raises:
        RuntimeError: MPICH is not there.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._num_orders = 0
        self._process = self._start() if seat.rank == 0 else None

    def _start(self) -> subprocess.Popen[bytes]:
        folder = find_folder()
        if folder is None:
            raise RuntimeError("MPICH was asked for, but is not in the folder mpich of this venv")
        # Nothing of the job that this rank belongs to may reach MPICH's ranks.
        inherited = {
            name: value
            for name, value in inherited_environment().items()
            if not name.startswith(("OMPI_", "PMIX_", "PRTE_", "PMI_", "OPAL_"))
        }
        environ = {
            **inherited,
            "LD_LIBRARY_PATH": str(folder / "lib"),
            "MPI4PY_MPIABI": "mpich",
        }
        mpiexec = [str(folder / "bin" / "mpiexec"), "-n", str(self._seat.size)]
        command = [*mpiexec, sys.executable, __file__]
        return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL)

    def prepare(self, name: str, counts: Sequence[int]) -> MpichContestant:
        """Has MPICH's ranks make tensors, and checks that their sums are right.

        Args:
            name: of the contestant.
            counts: the number of float32 elements of each tensor; they are reduced one by one.

        Raises:
            RuntimeError: a sum is wrong, or MPICH's job has ended.
        """
        self.order({"counts": list(counts)})
        return MpichContestant(name, self)

    def order(self, order: dict[str, Any]) -> float:
        """Has MPICH's ranks do something; returns the seconds that this benchmark rank's twin took.

        Raises:
            RuntimeError: it failed.
        """
        number = self._num_orders
        self._num_orders += 1
        self._seat.exchange("all sleep now")
        if self._seat.rank == 0:
            self._seat.set(f"mpich/order/{number}", order)
        answer = self._seat.get(f"mpich/answer/{number}/{self._seat.rank}", ANSWER_TIMEOUT_S)
        if "error" in answer:
            raise RuntimeError(f"MPICH's rank {self._seat.rank}: {answer['error']}")
        return float(answer["seconds"])

    def close(self) -> None:
        """Ends MPICH's job."""
        self.order({"end": True})
        if self._process is not None:
            self._process.wait(END_TIMEOUT_S)


class MpichContestant:
    """MPICH in the rounds of a benchmark."""

    def __init__(self, name: str, library: MpichLibrary) -> None:
        self.name = name
        self._library = library

    def burst(self, num_runs: int) -> float:
        """Seconds for ``num_runs`` runs, one after the other, behind a barrier."""
        return self._library.order({"runs": num_runs})


class _Worker:
    """A rank of MPICH's job: obeys the orders in the store."""

    def __init__(self, store: StoreClient) -> None:
        import mpi4py
        import numpy

        mpi4py.rc.thread_level = "funneled"  # as Open MPI has it here
        from mpi4py import MPI

        self._store = store
        self._numpy = numpy
        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self._buffers: list[Any] = []

    def run(self) -> None:
        """Until the order to end."""
        number, going_on = 0, True
        while going_on:
            order = json.loads(self._store.get(f"{_PREFIX}/order/{number}", ORDER_TIMEOUT_S))
            going_on = "end" not in order
            answer = f"{_PREFIX}/answer/{number}/{self._world.rank}"
            self._store.set(answer, json.dumps(self._obey(order)).encode())
            number += 1

    def _obey(self, order: dict[str, Any]) -> dict[str, Any]:
        if "counts" in order:
            return self._prepare(order["counts"])
        if "runs" in order:
            return {"seconds": self._burst(order["runs"])}
        return {"seconds": 0.0}

    def _prepare(self, counts: Sequence[int]) -> dict[str, Any]:
        size = self._world.size
        arrays = [
            self._numpy.full(count, self._world.rank + 1, dtype="float32") for count in counts
        ]
        self._buffers = [[array, self._mpi.FLOAT] for array in arrays]
        self._burst(1)
        if not all((array == size * (size + 1) / 2).all() for array in arrays):
            return {"error": "a wrong sum"}
        for array in arrays:
            array[:] = 0
        return {"seconds": 0.0}

    def _burst(self, num_runs: int) -> float:
        allreduce, in_place, buffers = self._world.Allreduce, self._mpi.IN_PLACE, self._buffers
        self._world.Barrier()
        began_s = time.perf_counter()
        for _ in range(num_runs):
            for buffer in buffers:
                allreduce(in_place, buffer)
        return time.perf_counter() - began_s


def main() -> None:
    config = Config.from_env()
    secret = read_secret(config.secret_file)
    with StoreClient(config.rendezvous_addr, config.rendezvous_port, secret) as store:
        _Worker(store).run()


if __name__ == "__main__":
    main()
