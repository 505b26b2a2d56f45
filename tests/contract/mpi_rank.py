"""One rank of test_mpi.py: runs every check over MPI and prints its name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "fakes")]

import torch
from checks import CHECKS
from torch_api import TorchApi

import horovod.torch as hvd


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    assert hvd.mpi_enabled()
    assert hvd.mpi_built()
    assert not hvd.gloo_enabled()
    assert hvd.mpi_threads_supported()
    for check in CHECKS:
        check(TorchApi(), hvd.rank(), hvd.size())
        sys.stdout.write(f"{hvd.rank()} {check.__name__}\n")
        sys.stdout.flush()
    hvd.shutdown()


if __name__ == "__main__":
    main()
