"""The results that a training script reports, for the table of an experiment."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod._base import files
from horovod._settings.config import inherited_environment
from horovod._settings.foreign_launchers import find_foreign_launcher
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["report_result"]

FILE = "results.jsonl"


def report_result(**metrics: Any) -> None:
    """Reports metrics of this run of a job file; the last value of each is in the table of runs.

    Rank 0 writes them to ``results.jsonl`` in OUTPUT_DIR; calls of other ranks, and calls in a job
    without a job file, do nothing.

    Args:
        metrics: names, and numbers or texts; scalars of NumPy and of frameworks count as numbers.

    Raises:
        UsageError: a value is neither, the file cannot be written, or this is a worker of an
            elastic line that has no rank before ``hvd.init()``.

    Example:
        >>> horovod.report_result(accuracy=0.98, epoch=3)
    """
    values = {name: _plain(name, value) for name, value in metrics.items()}
    environ = inherited_environment()
    if "EXPERIMENT_ID" not in environ or _rank(environ) != "0":
        return
    path = Path(environ.get("OUTPUT_DIR", "."), FILE)
    try:
        with os.fdopen(files.open_to_append(path), "ab") as file:
            record = {"time": round(time.time(), 3), **_where(environ), "metrics": values}
            file.write(json.dumps(record).encode() + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write the result to {path}: {error.strerror}") from None


def _rank(environ: Mapping[str, str]) -> str:
    """Return the rank of this process; that of a process that nobody told one is 0."""
    if rank := environ.get("HOROVOD_RANK"):
        return rank
    if found := find_foreign_launcher(environ):  # of an exported job, before hvd.init()
        return environ.get(found[1][0], "0")
    if environ.get("HOROVOD_ELASTIC"):
        raise UsageError(
            "report_result() in an elastic line before hvd.init(): this worker has no rank yet, "
            "and only rank 0 reports; call it after hvd.init()"
        )
    return "0"


def _where(environ: Mapping[str, str]) -> dict[str, int]:
    """Return the line and the attempt that report; nothing in an exported job, which has none."""
    names = {"line": "EXPERIMENT_LINE", "attempt": "EXPERIMENT_ATTEMPT"}
    return {key: int(environ[name]) for key, name in names.items() if name in environ}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"the result {name} is a {type(value).__name__}: report a number or a text"
        ) from None
