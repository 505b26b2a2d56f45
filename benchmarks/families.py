"""Ends processes with all that they have started."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import subprocess


def end_family(process: subprocess.Popen[str], patience_s: float) -> None:
    """Kill a process that still runs, and what it has started; wait for its end.

    Raises:
        subprocess.TimeoutExpired: it did not end.
    """
    family: list[psutil.Process] = []
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    process.wait(patience_s)
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.kill()
