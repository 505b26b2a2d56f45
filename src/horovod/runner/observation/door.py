"""Where a launcher serves its stream: an abstract socket that only the same user may use.

The name is not a file, so nothing is left over. The kernel says who is at the other end.
"""

from __future__ import annotations

import os
import re
import socket
import struct

from horovod.errors import UsageError

_PREFIX = "horovod-job"
_NAME = re.compile(rf"@{_PREFIX}-(\d+(?:\.\d+)?)$")
_MOST_JOBS = 1000
_CREDENTIALS = struct.Struct("3i")


def open_door(pid: int | None = None) -> tuple[socket.socket, str]:
    """Return a listening socket, and the key of a job of a process: ``PID`` or ``PID.NUMBER``.

    Args:
        pid: of the process by which users name the job; None for this one.

    Raises:
        OSError: the process has no descriptor left, or too many jobs.
    """
    pid = pid or os.getpid()
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        for number in range(_MOST_JOBS):
            key = f"{pid}.{number}" if number else f"{pid}"
            try:
                door.bind(_address(key))
            except OSError:
                if number == _MOST_JOBS - 1:
                    raise
                continue
            door.listen(16)
            return door, key
        raise AssertionError("unreachable")
    except BaseException:
        door.close()
        raise


def _address(key: str) -> str:
    return f"\0{_PREFIX}-{key}"


def is_of_this_user(sock: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user or to root."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(credentials)[1]
    return uid in (os.geteuid(), 0)


def running_jobs() -> list[str]:
    """Return the keys of all jobs of this host, also of other users, the latest last."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
        names = [_NAME.search(line.rstrip("\n")) for line in table]
    keys = {name[1] for name in names if name}
    return sorted(keys, key=lambda key: [int(part) for part in key.split(".")])


def connect(key: str = "") -> tuple[socket.socket, str]:
    """Return a connection to a job of this user, and the key of the job.

    Args:
        key: of the job; empty for the only one.

    Raises:
        UsageError: there is no such job, several could be meant, or it belongs to another user.
    """
    if key:
        found = _try_connect(key)
        if found is None:
            raise UsageError(f"there is no job {key} of this user on this host; {_listed()}")
        return found, key
    open_to_us = {each: sock for each in running_jobs() if (sock := _try_connect(each)) is not None}
    if len(open_to_us) == 1:
        ((key, sock),) = open_to_us.items()
        return sock, key
    for sock in open_to_us.values():
        sock.close()
    if not open_to_us:
        raise UsageError(
            "no job of this user runs on this host: start one with horovodrun, or run this "
            "command on the host of its horovodrun, inside the same container; of jobs that "
            "torchrun, mpirun or srun start, only those can be seen that have HOROVOD_DASHBOARD, "
            "HOROVOD_METRICS_PORT or HOROVOD_WATCH, on the host of rank 0"
        )
    raise UsageError(f"say which job: {', '.join(open_to_us)} are running")


def _listed() -> str:
    jobs = running_jobs()
    return f"there is {', '.join(jobs)}" if jobs else "there is none"


def _try_connect(key: str) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(5.0)
        sock.connect(_address(key))
        # Somebody else could have taken the name.
        if is_of_this_user(sock):
            return sock
    except OSError:
        pass
    sock.close()
    return None
