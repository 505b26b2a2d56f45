"""What processes and folders use at one moment: memory, descriptors, threads, disk."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

KIB = 1024


@dataclass(frozen=True)
class Use:
    """What a process holds.

    Attributes:
        resident_bytes: its pages in memory (RSS).
        anonymous_bytes: those of no file, such as what malloc has.
        proportional_bytes: its pages, each divided by the number of processes that have it (PSS).
        shared_bytes: of those, pages of shared memory: memfd, /dev/shm.
        descriptors, threads: how many.
    """

    resident_bytes: int
    anonymous_bytes: int
    proportional_bytes: int
    shared_bytes: int
    descriptors: int
    threads: int


def use_of(pid: int) -> Use:
    """Look at a process.

    Raises:
        OSError: it has ended, or belongs to somebody else.
    """
    folder = Path("/proc", str(pid))
    kib: dict[str, int] = {}
    for line in (folder / "smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        kib[name] = int(value.split()[0])
    return Use(
        KIB * kib["Rss"],
        KIB * kib["Anonymous"],
        KIB * kib["Pss"],
        KIB * kib.get("Pss_Shmem", 0),
        len(os.listdir(folder / "fd")),
        len(os.listdir(folder / "task")),
    )


def mapped_shared_files(pid: int) -> set[str]:
    """Return the files in /dev/shm that a process has mapped.

    Raises:
        OSError: it has ended, or belongs to somebody else.
    """
    maps = Path("/proc", str(pid), "maps").read_text()
    return set(re.findall(r"/dev/shm/(\S+)$", maps, re.MULTILINE))


def disk_use(folder: Path, counts: Callable[[str], bool]) -> tuple[int, int]:
    """Return the bytes and the number of files below a folder.

    Args:
        counts: says of the name of a file whether it counts.
    """
    size = number = 0
    for path, _, names in os.walk(folder):
        for name in filter(counts, names):
            with suppress(FileNotFoundError):  # it was there a moment ago
                size += os.lstat(os.path.join(path, name)).st_size
                number += 1
    return size, number
