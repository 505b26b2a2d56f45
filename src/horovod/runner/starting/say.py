"""Messages of the launcher itself, before and after a job."""

from __future__ import annotations

from typing import TextIO


def say(stderr: TextIO, line: str) -> None:
    """Write a message of the launcher itself before a job; a console that is gone is no error."""
    try:
        stderr.write(f"horovodrun: {line}\n")
        stderr.flush()
    except OSError:
        return
