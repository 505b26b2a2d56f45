"""Processes of Linux: who dies with whom, and who inherits orphans."""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}, {value}): {os.strerror(number)}")


def forbid_core_dumps() -> None:
    """Keeps the memory of this process out of core files, and from debuggers that are not root's.

    For launchers and agents, which hold the secret of the job. A limit on the size of core files
    would not do: it is not heeded where a program collects them. What this process executes may be
    dumped again, so ranks are as they always were.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Makes this process the parent of all its descendants whose own parent ends.

    So "no child is left" comes to mean "no descendant is left", daemons included.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int, parent_pid: int) -> None:
    """Lets the kernel send a signal to this process when its parent ends.

    Args:
        signum: the signal.
        parent_pid: who the parent was before the fork; if it is gone already, the signal comes now.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signum)


def reap() -> tuple[dict[int, int], bool]:
    """Collects the children that have ended, without waiting.

    Returns:
        Exit codes by pid (negative for a signal), in the order in which the kernel gave them, and
        whether any child is left.
    """
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = os.waitstatus_to_exitcode(status)
