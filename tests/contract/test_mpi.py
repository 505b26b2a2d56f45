"""The contract over an MPI library, for horovod.torch on ranks that its mpirun starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from checks import CHECKS
from mpi_launcher import mpirun, needs_mpi

_RANK = Path(__file__).parent / "mpi_rank.py"


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("size", [1, 2, 3])
def test_contract_over_mpi(size: int, tmp_path: Path) -> None:
    # A rank that waits in vain ends the test with a report.
    job = mpirun(
        size, [sys.executable, str(_RANK)], tmp_path, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="60"
    )
    assert job.returncode == 0, job.stdout + job.stderr
    names = [check.__name__ for check in CHECKS]
    lines = job.stdout.splitlines()
    for rank in range(size):
        assert [line.split()[1] for line in lines if line.startswith(f"{rank} ")] == names
    assert job.stderr == ""
