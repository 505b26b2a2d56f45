"""Logged values in a file of JSON lines."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod._base import files
from horovod._train.logged.record_file import RecordFile
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._settings.destinations import Destination
    from horovod._train.logged.record import Run

_MOST_LINE_BYTES = 1 << 20


class JsonLines:
    """A file that belongs to one job: each line is an object with run, step, time and values.

    Args:
        destination: its place is the path; ``{run}`` in it becomes the name of the run.
        run: this job.

    Raises:
        UsageError: the file cannot be written, or has something else in it than lines of this run.
    """

    def __init__(self, destination: Destination, run: Run) -> None:
        self._run = run.name
        path = Path(destination.place.replace("{run}", run.name))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _open_for(path, self._run)
        except OSError as error:
            raise UsageError(
                f"HOROVOD_LOG names {destination}, which cannot be written: {error.strerror}"
            ) from None
        self._file = RecordFile(descriptor, path)

    def write(self, step: int, values: Mapping[str, float], at_s: float) -> None:
        """Append a line; NaN and infinity are written as Python reads them."""
        line = {"run": self._run, "step": step, "time": round(at_s, 3), "values": dict(values)}
        self._file.append(json.dumps(line).encode() + b"\n")

    def close(self, *, failed: bool) -> None:
        """Close the file."""
        self._file.close()


def _open_for(path: Path, run: str) -> int:
    """Create the file, or open one that this job has begun."""
    is_new = True
    try:
        descriptor = files.create(path)
    except FileExistsError:
        descriptor, is_new = files.open_to_append(path), False
    if _take_empty(descriptor, is_new=is_new) or _run_of(path) == run:
        return descriptor
    os.close(descriptor)
    raise UsageError(
        f"{path} exists, and is not of this job: HOROVOD_LOG (--log) appends to no file of another "
        "run. Name another file, such as jsonl:metrics-{run}.jsonl, or remove it"
    )


def _take_empty(descriptor: int, *, is_new: bool) -> bool:
    """Whether a file is empty, and of nobody else who is about to write into it.

    Whoever has an empty file holds its lock. A file without a lock was left by a rank 0 that died
    before its first line.
    """
    try:
        if os.fstat(descriptor).st_size:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return is_new
    return os.fstat(descriptor).st_size == 0


def _run_of(path: Path) -> Any:
    with path.open("rb") as file:
        first = file.readline(_MOST_LINE_BYTES)
    try:
        return json.loads(first).get("run")
    except (ValueError, AttributeError):
        return None
