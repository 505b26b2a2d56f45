"""MPI as what moves the data: finds a library, begins with it, and ends with it.

Any library with the standard binary interface of MPI 5 (``libmpi_abi``) will do; none is needed to
build or to install Horovod.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from horovod import _native
from horovod.errors import HorovodInternalError, StartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horovod._settings.config import Config

_logger = logging.getLogger(__name__)

_NAMES = ("libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so")
_TURN_S = 0.2
# MPI_Finalize waits for the other ranks, which may have work left.
_FINISH_TIMEOUT_S = 10.0


class _Awaited(Protocol):
    def wait(self, timeout_s: float) -> bool: ...


def library_candidates(given: str = "") -> list[str]:
    """Return where libmpi_abi may be, the likeliest place first.

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


def was_initialized() -> bool:
    """Whether anybody has initialized MPI in this process, even if it has ended since.

    Asks each MPI library that is loaded; one that is part of another library without giving its
    functions away is not found.
    """
    return any(_was_initialized(library) for library in _loaded_libraries())


def _loaded_libraries() -> Iterator[ctypes.CDLL]:
    yield ctypes.CDLL(None)
    with open("/proc/self/maps") as file:
        paths = {line.split(maxsplit=5)[5].strip() for line in file if "/libmpi" in line}
    for path in paths:
        with suppress(OSError):  # replaced since it was loaded, or a file of data
            yield ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)


def _was_initialized(library: ctypes.CDLL) -> bool:
    flag = ctypes.c_int(0)
    try:
        return library.MPI_Initialized(ctypes.byref(flag)) == 0 and flag.value != 0
    except AttributeError:  # it is not MPI
        return False


class ProcessMpi:
    """MPI in this process: begins with the first job that needs it, ends with the process."""

    def __init__(self) -> None:
        self._process: _native.MpiProcess | None = None

    @property
    def all_threads(self) -> bool:
        """Whether MPI has begun, and any thread of the program may call it."""
        return self._process is not None and self._process.all_threads

    def begin(self, config: Config) -> None:
        """Initializes MPI, if nobody did, and checks that it knows the ranks of the job.

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

    def finish(self, *, failed: bool) -> None:
        """At the end of the process: ends MPI, if it was initialized here and nothing failed.

        That waits for all ranks. Whoever does not wait has crashed in the eyes of mpirun, which
        then kills those that still have work, say a checkpoint to write.

        Args:
            failed: this process ends because of an error, so it waits only for a while.
        """
        process, self._process = self._process, None
        if process is None:
            return
        patience_ends = time.monotonic() + _FINISH_TIMEOUT_S
        while process.given_up() is None and not process.finish(_TURN_S):
            if time.monotonic() < patience_ends:
                continue
            patience_ends = math.inf
            waited = (
                f"rank {process.rank}: MPI_Finalize did not return within {_FINISH_TIMEOUT_S:g} s"
            )
            if failed:
                _logger.warning("%s; the process ends without it", waited)
                return
            _logger.warning("%s, as other ranks still run; it waits for them", waited)

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
