"""A job whose ranks wait at a gate, so that a test can look at it, or attack it, at each stage."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import struct
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import DEADLINE_S, Launcher, launched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RANK = str(Path(__file__).with_name("gated_rank.py"))
_LISTENS = "0A"


@dataclass
class GatedJob:
    """Two ranks of this machine.

    Attributes:
        launcher: the running horovodrun.
        gates: the folder with the pipes of the ranks.
    """

    launcher: Launcher
    gates: Path

    def let(self, name: str) -> None:
        """Lets a rank pass its first gate (``0``) or its last one (``0.end``)."""

        def opened() -> bool:
            try:
                os.close(os.open(self.gates / name, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                if error.errno != errno.ENXIO:  # nobody reads it yet
                    raise
                return False
            return True

        wait_until(opened, f"the rank at gate {name}")

    def pid_of(self, rank: int) -> int:
        """The process of a rank; waits until it runs."""
        line = self.launcher.wait_lines("stderr", rf"rank {rank} on .* is process \d+")[0]
        return int(re.findall(r"process (\d+)", line)[0])

    def port_of(self, pid: int) -> tuple[str, int]:
        """Where a process of the job listens; waits until it does."""
        found: list[tuple[str, int]] = []
        wait_until(lambda: bool(found.extend(listeners_of(pid)) or found), f"a port of {pid}")
        return found[0]


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Looks again and again; for what tells nobody that it has come."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not come within {timeout_s:g} s"
        time.sleep(0.02)


def listeners_of(pid: int) -> list[tuple[str, int]]:
    """Address and port of each TCP socket on which the process listens, from /proc."""
    sockets = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(entry))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in sockets:
                found.append(_address(fields[1]))
    return found


def _address(text: str) -> tuple[str, int]:
    """``0100007F:1F90`` is 127.0.0.1 port 8080: words of four bytes in the order of the machine."""
    digits, port = text.split(":")
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return str(ipaddress.ip_address(packed)), int(port, 16)


@contextmanager
def gated_job(folder: Path, *options: str, **env: str) -> Iterator[GatedJob]:
    """Starts the job; its ranks have not come to their first gate yet."""
    for rank in range(2):
        os.mkfifo(folder / f"{rank}")
        os.mkfifo(folder / f"{rank}.end")
    words = ("-np", "2", "--verbose", *options, sys.executable, RANK, str(folder))
    with launched(*words, **env) as launcher:
        yield GatedJob(launcher, folder)
