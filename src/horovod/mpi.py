"""MPI as what moves the data: finds a library, begins with it, and ends with it.

Any library with the standard binary interface of MPI 5 (``libmpi_abi``) will do; none is needed to
build or to install Horovod.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from horovod import _native
from horovod.errors import HorovodInternalError, StartError, UsageError

if TYPE_CHECKING:
    from horovod.config import Config

_NAMES = ("libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so")
_TURN_S = 0.2
# MPI_Finalize waits for the other ranks; one that died never comes.
_FINISH_TIMEOUT_S = 10.0


class _Awaited(Protocol):
    def wait(self, timeout_s: float) -> bool: ...


def library_candidates(given: str = "") -> list[str]:
    """Where libmpi_abi may be, the likeliest place first.

    Args:
        given: what the user named; then nothing else is tried.

    Returns:
        Names for the system's loader and paths of files that exist: beside the program that started
        this process, which is MPI's own under ``mpirun``, in this environment of Python, and beside
        the ``mpirun`` that the shell finds.
    """
    if given:
        return [given]
    prefixes = [_prefix_of(f"/proc/{os.getppid()}/exe"), Path(sys.prefix)]
    mpirun = shutil.which("mpirun")
    if mpirun:
        prefixes.append(_prefix_of(mpirun))
    files = [prefix / "lib" / name for prefix in prefixes if prefix for name in _NAMES]
    found = [str(file) for file in dict.fromkeys(files) if file.exists()]
    return [*found[:1], *_NAMES, *found[1:]]


def _prefix_of(program: str) -> Path | None:
    """The folder that holds the ``bin`` of a program."""
    try:
        return Path(program).resolve(strict=True).parent.parent
    except OSError:  # another user's process, or none
        return None


@functools.cache
def find_library(given: str = "") -> tuple[str, str] | None:
    """The path of the library that would be used and what it says of itself; None without one."""
    try:
        path, version = _native.find_mpi(library_candidates(given))
    except UsageError:
        return None
    return path, version


class ProcessMpi:
    """MPI in this process: begins with the first job that needs it, ends with the process."""

    def __init__(self) -> None:
        self._process: _native.MpiProcess | None = None

    @property
    def all_threads(self) -> bool:
        """Whether MPI has begun, and any thread of the program may call it."""
        return self._process is not None and self._process.all_threads

    def begin(self, config: Config) -> None:
        """Initialises MPI, if nobody did, and checks that it knows the ranks of the job.

        Raises:
            StartError: there is no library, it does not answer in time, it was given up after a
                failure, or it was not started with this job.
        """
        who = f"HOROVOD_CPU_OPERATIONS=mpi on rank {config.rank}"
        try:
            if self._process is None:
                self._process = _native.MpiProcess(
                    library_candidates(config.mpi_library), not config.mpi_threads_disable
                )
            reason = self._process.given_up()
            if reason is not None:
                raise StartError(
                    f"{who}: MPI cannot be used again after a failure ({reason}): start the "
                    "processes of the job anew"
                )
            self._wait(self._process, config, "MPI_Init did not return")
        except UsageError as error:
            raise StartError(
                f"{who}: {error}\nInstall one (pip install mpich) or name it with "
                "HOROVOD_MPI_LIBRARY, and start the job with its mpirun; or unset "
                "HOROVOD_CPU_OPERATIONS, and nothing of MPI is needed"
                if self._process is None
                else f"{who}: {error}"
            ) from error
        if self._process.size != config.size:
            raise StartError(
                f"{who}: the job has {config.size} ranks, but MPI_COMM_WORLD has "
                f"{self._process.size}. Start the job with the mpirun that belongs to "
                f"{self._process.path} ({self._process.version}), or unset HOROVOD_CPU_OPERATIONS"
            )

    def world(self, config: Config) -> _native.MpiWorld:
        """Meets the other ranks in MPI; all ranks do, each time that a job begins.

        Raises:
            StartError: they did not come in time.
        """
        assert self._process is not None, "begin() comes first"
        world = _native.MpiWorld(self._process, config.rank, config.size)
        self._wait(world, config, "not all ranks have come to MPI_Comm_split")
        return world

    def finish(self) -> None:
        """At the end of the process: ends MPI, if it was initialised here and nothing failed."""
        process, self._process = self._process, None
        if process is None or process.given_up() is not None:
            return
        if not process.finish(_FINISH_TIMEOUT_S):
            warnings.warn(
                f"rank {process.rank}: MPI_Finalize did not return within {_FINISH_TIMEOUT_S:g} s, "
                "as another rank ended without it; the process ends without it too",
                stacklevel=2,
            )

    def abandon(self) -> None:
        """In the child of a fork: MPI is the parent's."""
        process, self._process = self._process, None
        if process is not None:
            process.abandon()

    def _wait(self, awaited: _Awaited, config: Config, problem: str) -> None:
        """Waits in turns, so that Ctrl-C comes through."""
        assert self._process is not None
        deadline = time.monotonic() + config.start_timeout_s
        try:
            while not awaited.wait(_TURN_S):
                if time.monotonic() > deadline:
                    self._process.give_up(problem)
                    raise StartError(
                        f"rank {config.rank}: {problem} within {config.start_timeout_s:g} s "
                        "(HOROVOD_START_TIMEOUT). Do all ranks have HOROVOD_CPU_OPERATIONS=mpi, "
                        f"and was each started by the mpirun of {self._process.path}?"
                    )
        except HorovodInternalError as error:
            raise StartError(f"rank {config.rank}: {error}") from error
