"""Starts ranks with the mpirun of an MPI that has libmpi_abi; the store runs in the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from launcher import environment

from horovod._job.job import open_job

if TYPE_CHECKING:
    from collections.abc import Sequence

DEADLINE_S = 120.0
ABI_NAMES = ("libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so")


@dataclass(frozen=True)
class Mpi:
    """An MPI of this machine.

    Attributes:
        mpirun: the program that starts ranks.
        library: its libmpi_abi.
    """

    mpirun: str
    library: str

    def command(self, size: int, words: Sequence[str]) -> list[str]:
        """Starts ranks, more than there are cores if need be, and keeps them if one dies."""
        version = subprocess.run(
            [self.mpirun, "--version"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        )
        is_open_mpi = "Open MPI" in version.stdout
        flags = (
            ["--oversubscribe", "--allow-run-as-root"] if is_open_mpi else ["-disable-auto-cleanup"]
        )
        return [self.mpirun, *flags, "-n", str(size), *words]


def find_mpi() -> Mpi | None:
    """The first MPI with the standard binary interface: of this environment, or of the shell."""
    prefixes = [Path(sys.prefix), Path(sys.prefix) / "mpich"]
    found = shutil.which("mpirun")
    if found:
        prefixes.append(Path(found).resolve().parent.parent)
    for prefix in prefixes:
        mpirun = prefix / "bin" / "mpirun"
        for name in ABI_NAMES:
            library = prefix / "lib" / name
            if mpirun.exists() and library.exists():
                return Mpi(str(mpirun), str(library))
    return None


needs_mpi = pytest.mark.skipif(
    find_mpi() is None,
    reason="there is no MPI with libmpi_abi here; requirements/mpich.txt brings one",
)


def mpirun(
    size: int, words: Sequence[str], directory: Path, timeout_s: float = DEADLINE_S, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program on ranks that MPI starts, to its end.

    Args:
        size: the number of ranks.
        words: the program and its arguments.
        directory: private; for the job's secret.
        timeout_s: until the job must have ended.
        env: further variables of all ranks.
    """
    mpi = find_mpi()
    assert mpi is not None
    directory.chmod(0o700)
    with open_job() as job:
        variables = {
            **job.told(directory).variables(),
            "HOROVOD_CPU_OPERATIONS": "mpi",
            "HOROVOD_MPI_LIBRARY": mpi.library,
        }
        return subprocess.run(
            mpi.command(size, words),
            env=environment(**{**variables, **env}),
            cwd=os.getcwd(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
