"""The modes of the launcher, and the one sentence that refuses an option of another mode. Pure."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Mode(enum.Flag):
    """Kinds of work that a launcher can do with a job."""

    FIXED = enum.auto()
    ELASTIC = enum.auto()
    NODE = enum.auto()
    MPI = enum.auto()
    JOB_FILE = enum.auto()
    JOIN = enum.auto()
    CHECK = enum.auto()


NAMES = {
    Mode.FIXED: "jobs of a fixed size",
    Mode.ELASTIC: "elastic jobs",
    Mode.NODE: "one node of several",
    Mode.MPI: "jobs that mpirun or jsrun starts",
    Mode.JOB_FILE: "job files",
    Mode.JOIN: "hosts that join a job",
    Mode.CHECK: "checks of hosts",
}


def check_options(
    given: Mapping[str, Mode], mode: Mode, chosen_by: Mapping[Mode, str], caller: str = ""
) -> None:
    """Refuse the first option that does not fit the mode.

    Args:
        given: the modes of each option that the user gave.
        mode: the mode of this job.
        chosen_by: the options that choose each mode, for the message.
        caller: goes in front of the message.

    Raises:
        UsageError: an option is for other modes.
    """
    for option, modes in given.items():
        if mode not in modes:
            fitting = [_described(each, chosen_by) for each in Mode if each in modes]
            advice = f"it is for {' and '.join(fitting)}" if len(fitting) < 3 else "leave it out"
            raise UsageError(f"{caller}{option} is not for {_described(mode, chosen_by)}: {advice}")


def _described(mode: Mode, chosen_by: Mapping[Mode, str]) -> str:
    return NAMES[mode] + (f" ({chosen_by[mode]})" if mode in chosen_by else "")
