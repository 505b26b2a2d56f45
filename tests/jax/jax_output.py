"""What the ranks of a job printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess


def said_by(job: subprocess.CompletedProcess[str], rank: int) -> list[str]:
    """The lines that a rank printed."""
    prefix = f"[{rank}]<stdout>:"
    return [line.removeprefix(prefix) for line in job.stdout.splitlines() if prefix in line]
