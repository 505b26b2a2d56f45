"""A rank's report to the launcher of when it came, and when it was connected."""

from __future__ import annotations

import os
import time

_STAT = "/proc/self/stat"
# Place of the start time behind the name of the program; see proc(5).
_START_FIELD = 19


def called_key(rank: int) -> str:
    """Return the key of a rank's seconds from the start of its process to ``init``."""
    return f"arrival/called/{rank}"


def connected_key(rank: int) -> str:
    """Return the key of the seconds that a rank took to connect to all others."""
    return f"arrival/connected/{rank}"


def process_age_s() -> float:
    """Seconds since this process was started, to some hundredths; 0 if nobody knows."""
    try:
        with open(_STAT) as file:
            fields = file.read().rpartition(")")[2].split()
        started_s = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
    except (OSError, ValueError, IndexError):
        return 0.0
