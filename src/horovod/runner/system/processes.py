"""Processes of Linux: who dies with whom, and who inherits orphans."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Collection

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

# How often the processes are looked up again while they are being killed: one that was just being
# created may have escaped the last look.
KILL_INTERVAL_S = 0.05

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


def is_child(pid: int, parent_pid: int) -> bool:
    """Whether a process runs and is the child of another."""
    try:
        return bool(psutil.Process(pid).ppid() == parent_pid)
    except psutil.Error:
        return False


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, and can react to nothing but SIGKILL."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def described_descendants() -> list[str]:
    """The names and numbers of all descendants of this process that run."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.name()} (process {process.pid})")
    return found


def signal_descendants(signum: int) -> None:
    """Sends a signal to all descendants of this process."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.send_signal(signum)


def signal_others(signum: int, groups: Collection[int]) -> None:
    """Sends a signal to the descendants of this process that are in none of the process groups."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(process.pid) not in groups:
                process.send_signal(signum)


def signal_session(session: int, signum: int) -> None:
    """Sends a signal to the descendants of this process that belong to a session.

    Args:
        session: the pid of the process that began it; it may have ended.
        signum: the signal.
    """
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getsid(process.pid) == session:
                process.send_signal(signum)


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


def kill_descendants(timeout_s: float) -> bool:
    """Kills all descendants of this process, which must be a subreaper, and waits for their end.

    Args:
        timeout_s: how long to wait; a process inside a hung system call cannot be killed.

    Returns:
        Whether none is left.
    """
    deadline_s = time.monotonic() + timeout_s
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal_descendants(signal.SIGKILL)
        _, any_left = reap()
        if not any_left:
            return True
        if time.monotonic() >= deadline_s:
            return False
        signal.sigtimedwait({signal.SIGCHLD}, KILL_INTERVAL_S)
