"""A rank that tells its place: run by test_starters.py. The argument says when MPI is initialised:
none, before, or after Horovod has met the other ranks."""

from __future__ import annotations

import sys

import torch

import horovod.torch as hvd


def main(mpi: str) -> None:
    if mpi == "before":
        check_mpi()
    for _ in range(2):  # the second time they meet at the same place
        hvd.init()
        total = hvd.allreduce(torch.ones(1) + hvd.rank(), op=hvd.Sum).item()
        line = (
            f"rank {hvd.rank()}/{hvd.size()} local {hvd.local_rank()}/{hvd.local_size()} "
            f"cross {hvd.cross_rank()}/{hvd.cross_size()} sum {total}"
        )
        size = hvd.size()
        hvd.shutdown()
    if mpi == "after":
        assert check_mpi() == size
    # In one piece: the lines of several ranks share a pipe.
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def check_mpi() -> int:
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.allreduce(1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
