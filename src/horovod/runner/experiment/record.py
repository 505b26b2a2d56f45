"""Reads and writes an experiment's output folder: its launcher, and the state of each run."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from horovod._base import files
from horovod.errors import UsageError
from horovod.runner.experiment.plan import described, shown
from horovod.runner.experiment.trusted import check_folder, close_to_others, read_trusted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.experiment.grid import Run

EXPERIMENT = "experiment.json"
JOB_FILE = "job.yml"
EVENTS = "events.jsonl"
RESULTS = "results.jsonl"
LOGS = "logs"
CONSOLE = "console.log"
# What the ranks of a run have told last; only written while somebody looks at it.
LIVE = "live.json"
MONITORED = "monitored"

# The start of a process is rounded to clock ticks.
_SAME_START_S = 1.0


@dataclass(frozen=True)
class RunRecord:
    """State and results of a run so far.

    Attributes:
        name: its id, such as ``3`` or ``3.1``.
        parameters: in one line.
        state: pending, running, lost (nobody runs it any more), finished, failed, killed or
            pruned.
        exit_code: 0, or that of the rank that failed first; None before.
        seconds: how long it took, or takes already; None before.
        line: the number of the line that is, or was, executed; 0 before.
        num_ended: how many ranks have come to the end of this line.
        results: the last value of each metric that it reported, in the attempt that counts.
        attempt: how often the run, or a line of it, was begun; 0 before.
    """

    name: str
    parameters: str
    state: str = "pending"
    exit_code: int | None = None
    seconds: float | None = None
    line: int = 0
    num_ended: int = 0
    results: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 0


@dataclass(frozen=True)
class Record:
    """An experiment that was begun.

    Attributes:
        folder: of its output.
        number: its id.
        runs: the parameters of each run.
        host, pid, started: of the process that runs it, or ran it last.
    """

    folder: Path
    number: int
    runs: tuple[Mapping[str, str], ...]
    host: str
    pid: int
    started: float

    def is_running(self) -> bool:
        """Whether its process is there.

        Raises:
            UsageError: it is on another host, of which nothing is known here.
        """
        if self.host != socket.gethostname():
            raise UsageError(f"experiment {self.number} was started on {self.host}: ask there")
        try:
            process = psutil.Process(self.pid)
            is_same = bool(abs(process.create_time() - self.started) < _SAME_START_S)
            return is_same and bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def may_run(self) -> bool:
        """Whether its process is there, or is on another host, of which nothing is known."""
        try:
            return self.is_running()
        except UsageError:
            return True

    def folder_of(self, index: int) -> Path:
        """The folder of a run, from 1."""
        return self.folder / str(index) if len(self.runs) > 1 else self.folder

    def name_of(self, index: int) -> str:
        """The id of a run, from 1."""
        return f"{self.number}.{index}" if len(self.runs) > 1 else f"{self.number}"

    def run_records(self, *, is_running: bool) -> list[RunRecord]:
        """Return the record of each run."""
        return [
            _run_record(
                self.name_of(index), parameters, self.folder_of(index), is_running=is_running
            )
            for index, parameters in enumerate(self.runs, 1)
        ]


def root_of(cwd: str | Path, project: str) -> Path:
    """The folder of all experiments of a project."""
    return Path(cwd, "output", project)


def begin(folder: Path, runs: Sequence[Run]) -> Record:
    """Notes that this process runs an experiment.

    Raises:
        UsageError: the folder cannot be written.
    """
    own = psutil.Process()
    record = Record(
        folder,
        int(folder.name),
        tuple(dict(run.parameters) for run in runs),
        socket.gethostname(),
        own.pid,
        own.create_time(),
    )
    data = {"runs": record.runs, "host": record.host, "pid": record.pid, "started": record.started}
    write(folder / EXPERIMENT, json.dumps(data))
    close_to_others(folder / EXPERIMENT)
    return record


def read(folder: Path) -> Record:
    """Return the record of an experiment.

    Raises:
        UsageError: there is none, it cannot be read, or another user could have written it.
    """
    try:
        check_folder(folder)
        data = json.loads(read_trusted(folder / EXPERIMENT))
        runs = tuple(dict(each) for each in data["runs"])
        return Record(
            folder, int(folder.name), runs, data["host"], data["pid"], float(data["started"])
        )
    except FileNotFoundError:
        known = ", ".join(str(each.number) for each in all_in(folder.parent)) or "none"
        raise UsageError(
            f"there is no experiment {folder.name} in {folder.parent}; there is {known}"
        ) from None
    except UsageError:  # which is a ValueError, and says all
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"cannot read {folder / EXPERIMENT}: {error}") from None


def all_in(root: Path) -> list[Record]:
    """All experiments of a project that can be read, in the order of their numbers."""
    return all_and_refused(root)[0]


def all_and_refused(root: Path) -> tuple[list[Record], list[str]]:
    """All experiments of a project, and why others, as those of another user, are not used."""
    found, refused = [], []
    for number in _numbers_in(root):
        try:
            found.append(read(root / str(number)))
        except UsageError as error:
            refused.append(str(error))
    return found, refused


def _numbers_in(root: Path) -> list[int]:
    if not root.is_dir():
        return []
    numbers = sorted(int(each.name) for each in root.iterdir() if each.name.isdecimal())
    return [number for number in numbers if (root / str(number) / EXPERIMENT).exists()]


def last_in(root: Path) -> int:
    """The number of the experiment that was begun last.

    Raises:
        UsageError: there is none.
    """
    numbers = _numbers_in(root)
    if not numbers:
        raise UsageError(f"there is no experiment in {root}: 'horovodrun -f FILE' begins one")
    return max(numbers)


def _run_record(
    name: str, parameters: Mapping[str, str], folder: Path, *, is_running: bool
) -> RunRecord:
    begun = ended = None
    line = num_ended = attempt = 0
    attempts: dict[int, int] = {}  # in which each line was executed last
    for event in _lines_of(folder / EVENTS):
        match event.get("event"):
            case "run-started":
                begun, ended, line, num_ended = event, None, 0, 0
                attempt, attempts = event.get("attempt", attempt + 1), {}
            case "line-started":
                line, num_ended = event["line"], 0
                attempt = attempts[line] = event.get("attempt", attempt)
            case "rank-ended":
                num_ended += 1
            case "run-ended":
                ended = event
    what = described(parameters)
    if begun is None:
        return RunRecord(name, what)
    results = _results(folder, attempt, attempts)
    if ended is None:
        state, code, until = "running" if is_running else "lost", None, time.time()
    else:
        state, code, until = ended["state"], ended["exit_code"], ended["time"]
    seconds = None if state == "lost" else max(0.0, until - begun["time"])
    return RunRecord(name, what, state, code, seconds, line, num_ended, results, attempt)


def _results(folder: Path, attempt: int, attempts: Mapping[int, int]) -> dict[str, Any]:
    """The last value of each metric, of each line's last execution: failed ones do not count.

    What names no line, since a program has written it by itself, counts in the first attempt only:
    later nobody knows whose it is.
    """
    results: dict[str, Any] = {}
    for reported in _lines_of(folder / RESULTS):
        given, metrics = reported.get("attempt"), reported.get("metrics")
        line = reported.get("line", 0)
        is_last = attempt == 1 if given is None else attempts.get(line) == given
        if is_last and isinstance(metrics, dict):
            results |= metrics
    return results


def _lines_of(path: Path) -> list[dict[str, Any]]:
    """The records of a file; a line that was not written to its end is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    records = []
    for line in text.splitlines():
        with suppress(ValueError):  # written in part: the process was killed, or still writes
            record = json.loads(line)
            records += [record] if isinstance(record, dict) else []
    return records


def table(records: Sequence[RunRecord], metrics: Mapping[str, str] | None = None) -> list[str]:
    """A line for each run, below a line of titles. Pure.

    Args:
        records: of the runs.
        metrics: of the job file: each with "max" or "min". A line at the end names the best run by
            the first of them, out of those that have finished.
    """
    rows = [("run", "state", "attempt", "seconds", "results", "parameters")]
    for record in records:
        at = f"line {record.line}"
        if record.num_ended:
            at += f", {record.num_ended} rank{'s' if record.num_ended > 1 else ''} waiting"
        state = f"{record.state} ({at})" if record.state == "running" else record.state
        seconds = "" if record.seconds is None else f"{record.seconds:.1f}"
        results = described({key: _short(value) for key, value in record.results.items()})
        attempt = f"{record.attempt or ''}"
        rows.append((record.name, state, attempt, seconds, results, record.parameters))
    return [*aligned(rows), *_best(records, metrics or {})]


def _best(records: Sequence[RunRecord], metrics: Mapping[str, str]) -> list[str]:
    name, goal = next(iter(metrics.items()), ("", ""))
    finished = [record for record in records if record.state == "finished"]
    known = [each for each in finished if _is_number(each.results.get(name))]
    if len(records) == 1 or not name or not finished:
        return []
    if not known:
        return [f"there is no best run: no finished run has a number for {shown(name)}"]
    best = (max if goal == "max" else min)(known, key=lambda each: each.results[name])
    return [f"the best run is {best.name}: {shown(name)}={_short(best.results[name])}"]


def _is_number(value: Any) -> bool:
    """Whether a value can be compared; NaN cannot."""
    return isinstance(value, int | float) and not math.isnan(value)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table, in columns. Pure."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write(path: Path, text: str, *, append: bool = False) -> None:
    """Writes a file of an experiment.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        if append:
            with os.fdopen(files.open_to_append(path), "ab") as file:
                file.write((text if _is_complete(path) else f"\n{text}").encode())
        else:
            with files.writing_whole(path) as file:
                file.write(text.encode())
    except OSError as error:
        raise unwritable(path, error) from None


def _is_complete(path: Path) -> bool:
    """Whether a file ends with the end of a line."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def unwritable(path: Path, error: OSError) -> UsageError:
    """Return the error for a file that cannot be written."""
    return UsageError(f"cannot write the output of the experiment: {path}: {error.strerror}")
