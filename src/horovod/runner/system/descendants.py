"""The descendants of this process, found by psutil, which the launcher of a job seldom needs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from horovod.runner.system.processes import reap

if TYPE_CHECKING:
    from collections.abc import Collection

# How often the processes are looked up again while they are being killed: one that was just being
# created may have escaped the last look.
KILL_INTERVAL_S = 0.05


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


def describe_descendants() -> list[str]:
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
