"""Chooses the launcher of the ranks, from the user's request and the installed programs.

Earlier versions chose a library for the control messages at the same time. Here the engine is
always Horovod's own, so the old words only say who starts the processes.
"""

from __future__ import annotations

import enum
import os
import shutil
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Launcher(enum.Enum):
    """Program that starts the ranks."""

    AGENTS = "agents"
    MPIRUN = "mpirun"
    JSRUN = "jsrun"


@dataclass(frozen=True)
class Surroundings:
    """Launchers found on this machine.

    Attributes:
        mpirun, jsrun: whether the program is on the path.
        lsf: whether this is a job of LSF.
    """

    mpirun: bool = False
    jsrun: bool = False
    lsf: bool = False


def find_surroundings(environ: Mapping[str, str]) -> Surroundings:
    """Look for the programs on the path of an environment, and for a job of LSF."""
    path = environ.get("PATH", os.defpath)
    return Surroundings(
        mpirun=shutil.which("mpirun", path=path) is not None,
        jsrun=shutil.which("jsrun", path=path) is not None,
        lsf="LSB_JOBID" in environ,
    )


@dataclass(frozen=True)
class Choice:
    """Chosen launcher of the ranks, and one line that names it and the reason."""

    launcher: Launcher
    line: str


def choose(request: str, found: Surroundings) -> Choice:
    """Decides who starts the ranks.

    Args:
        request: gloo, mpi or jsrun, from a flag or the config file; empty for none.
        found: what is there.

    Raises:
        UsageError: what was asked for is not there.
    """
    engine = "the engine is Horovod's own"
    if request == "gloo":
        return Choice(Launcher.AGENTS, f"gloo: horovodrun starts the ranks; {engine}, without Gloo")
    if request == "mpi":
        if not found.mpirun:
            raise UsageError(
                "mpi: there is no mpirun on the path; install an MPI, or leave --mpi (or "
                "'controller: mpi') out: horovodrun starts the ranks without MPI"
            )
        return Choice(Launcher.MPIRUN, f"mpi: mpirun starts the ranks; {engine}")
    if request == "jsrun":
        if not (found.lsf and found.jsrun):
            missing = (
                "no jsrun on the path" if found.lsf else "no job of LSF (LSB_JOBID is not set)"
            )
            raise UsageError(
                f"--jsrun: there is {missing}; leave --jsrun out, and horovodrun starts the "
                "ranks itself"
            )
        return Choice(Launcher.JSRUN, f"jsrun: jsrun starts the ranks; {engine}")
    if found.lsf and found.jsrun:
        return Choice(Launcher.JSRUN, f"in a job of LSF jsrun starts the ranks; {engine}")
    return Choice(Launcher.AGENTS, f"horovodrun starts the ranks; {engine}")


def request_of(flags: dict[str, bool], config_controller: str) -> str:
    """The controller that was asked for: a flag is stronger than the config file.

    Args:
        flags: whether ``gloo``, ``mpi`` and ``jsrun`` were given.
        config_controller: the key ``controller``; empty if there is none.

    Raises:
        UsageError: more than one flag was given.
    """
    given = [name for name, is_given in flags.items() if is_given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(f'--{name}' for name in given)} are mutually exclusive")
    return given[0] if given else config_controller
