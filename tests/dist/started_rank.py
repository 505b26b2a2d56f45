"""A rank that tells its place: run by test_foreign_launchers.py. The argument says when MPI is
initialized: none, before, or after Horovod has met the other ranks; "uneven" is none, and
rank 0 ends last.
"""

from __future__ import annotations

import os
import sys
import time

import psutil
from summing_rank import sum_of_ranks

from horovod._rank import context as hvd
from horovod._train.objects import allgather_object


def main(mpi: str) -> None:
    if mpi == "before":
        check_mpi()
    for _ in range(2):  # the second time they meet at the same place
        hvd.init()
        line = (
            f"rank {hvd.rank()}/{hvd.size()} local {hvd.local_rank()}/{hvd.local_size()} "
            f"cross {hvd.cross_rank()}/{hvd.cross_size()} sum {sum_of_ranks()}"
        )
        rank, size = hvd.rank(), hvd.size()
        pids = allgather_object(hvd.global_group(), os.getpid())
        hvd.shutdown()
    if mpi == "after":
        assert check_mpi() == size
    if mpi == "uneven" and rank == 0:
        wait_until_gone(pids[1:])
    # In one piece: the lines of several ranks share a pipe.
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def wait_until_gone(pids: list[int]) -> None:
    """Until the processes have ended, whoever starts them has noticed, and nothing came of it."""
    while any(map(runs, pids)):
        time.sleep(0.01)
    time.sleep(0.5)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check_mpi() -> int:
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.allreduce(1))


if __name__ == "__main__":
    main(sys.argv[1])
