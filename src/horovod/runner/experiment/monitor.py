"""``horovodrun experiment monitor``: what the ranks of an experiment do now.

Everything is read from the output folder and, for the processes of this host, from the system: the
job is not asked, and does not wait.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

from horovod._base import files
from horovod._rendezvous.waits import Waits
from horovod.runner.experiment import record
from horovod.runner.experiment.new_lines import NewLines

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_BYTES = 2048
# Processes are looked for less often than they are looked at.
_SEARCH_S = 5.0
_MIB = 1 << 20


@dataclass(frozen=True)
class RankView:
    """Current view of a rank of an active run.

    Attributes:
        run: its id.
        line: the number of the line that it executes.
        rank, host: which one, and where.
        state: running, or waiting at the end of the line, or failed.
        seconds: since the line began, or until this rank has ended.
        collectives: per second; None if it has told nothing yet.
        waiting: the share of time in which it waits for other ranks, from 0 to 1; None likewise.
        memory: bytes of its processes; None if they are on another host.
        said: its last line of output.
    """

    run: str
    line: int
    rank: int
    host: str
    state: str
    seconds: float
    collectives: float | None = None
    waiting: float | None = None
    memory: int | None = None
    said: str = ""


@dataclass
class _Line:
    """The line that a run executes.

    Attributes:
        number: from 1.
        began: when, in seconds since the epoch.
        hosts: of each rank.
        logs: the folder of what they write.
        ended: what is known of the ranks that have ended: seconds, exit code.
    """

    number: int
    began: float
    hosts: list[str]
    logs: str
    ended: dict[int, tuple[float, int]] = field(default_factory=dict)


class RunView:
    """Reads what is new of one run each time it is asked.

    Args:
        name: of the run.
        folder: of the run.

    Attributes:
        line: the line that it executes; None if it executes none.
        is_over: whether it has ended, however it did.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.line: _Line | None = None
        self.is_over = False
        self._name = name
        self._folder = folder
        self._events = NewLines(folder / record.EVENTS)
        self._told: dict[int, Waits] = {}
        self._rates: dict[int, tuple[float, float]] = {}

    def look(self) -> list[RankView]:
        """The ranks of the line that is executed; none if there is no such line."""
        for text in self._events.read():
            with suppress(ValueError):  # a line whose writer was killed
                self._take(json.loads(text))
        line = self.line
        if line is None:
            return []
        self._read_live()
        views = []
        for rank, host in enumerate(line.hosts):
            seconds, code = line.ended.get(rank, (time.time() - line.began, None))
            state = "running" if code is None else "failed" if code else "waiting"
            collectives, waiting = self._rates.get(rank, (None, None))
            said = _last_line(self._logs_of(line, rank))
            views.append(
                RankView(
                    self._name, line.number, rank, host, state, seconds, collectives, waiting,
                    said=said,
                )
            )  # fmt: skip
        return views

    def _take(self, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "line-started":
                self.line = _Line(
                    event["line"], event["time"], event.get("hosts", []), event.get("logs", "")
                )
                self._told, self._rates = {}, {}
            case "rank-ended" if self.line is not None:
                self.line.ended[event["rank"]] = (event["seconds"], event["exit_code"])
            case "line-ended":
                self.line = None
            case "run-ended":
                self.line, self.is_over = None, True
            case "run-started":  # again, when it is resumed
                self.line, self.is_over = None, False

    def _read_live(self) -> None:
        try:
            told = json.loads((self._folder / record.LIVE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        for text, numbers in told.items():
            rank, now = int(text), Waits(*numbers)
            before = self._told.setdefault(rank, now)
            length_s = now.at_s - before.at_s
            if length_s > 0:
                self._rates[rank] = (
                    (now.submitted - before.submitted) / length_s,
                    min(1.0, (now.waited_s - before.waited_s) / length_s),
                )
            self._told[rank] = now

    def _logs_of(self, line: _Line, rank: int) -> Path:
        width = len(str(len(line.hosts) - 1))
        return self._folder / record.LOGS / line.logs / f"rank.{rank:0{width}d}"


def _last_line(folder: Path) -> str:
    """Return the last line that a rank wrote to stdout or stderr."""
    newest, text = 0.0, ""
    for stream in ("stdout", "stderr"):
        with suppress(OSError), (folder / stream).open("rb") as file:
            file.seek(0, 2)
            size = file.tell()
            written = (folder / stream).stat().st_mtime
            if size == 0 or written < newest:
                continue
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
            newest = written
            text = next((line for line in reversed(lines) if line.strip()), text)
    return text.rpartition("\r")[2].strip()


class Memory:
    """The memory of the processes of ranks on this host, by run and rank.

    Args:
        pid: of the process that runs the experiment.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ranks: dict[int, tuple[str, int] | None] = {}
        self._processes: list[Any] = []
        self._searched_s = float("-inf")

    def look(self) -> dict[tuple[str, int], int]:
        """Bytes of resident memory; processes of one rank that share memory count it each."""
        if time.monotonic() - self._searched_s >= _SEARCH_S:
            self._search()
        found: dict[tuple[str, int], int] = defaultdict(int)
        for process in self._processes:
            with suppress(psutil.Error):
                whose = self._ranks[process.pid]
                if whose is not None:
                    found[whose] += process.memory_info().rss
        return found

    def _search(self) -> None:
        self._searched_s = time.monotonic()
        try:
            self._processes = psutil.Process(self._pid).children(recursive=True)
        except psutil.Error:
            self._processes = []
        known, self._ranks = self._ranks, {}
        for process in self._processes:
            self._ranks[process.pid] = known.get(process.pid) or _rank_of(process)


def _rank_of(process: Any) -> tuple[str, int] | None:
    try:
        environ = process.environ()
        return environ["EXPERIMENT_ID"], int(environ["HOROVOD_RANK"])
    except (psutil.Error, KeyError, ValueError):
        return None


class Monitor:
    """Looks at an experiment again and again.

    Args:
        known: the experiment.
    """

    def __init__(self, known: record.Record) -> None:
        self._number = known.number
        self._wanted = known.folder / record.MONITORED
        self._runs = [
            RunView(known.name_of(index), known.folder_of(index))
            for index in range(1, len(known.runs) + 1)
        ]
        self._memory = Memory(known.pid)

    def look(self) -> list[RankView]:
        """All ranks of the runs that go on now."""
        with suppress(OSError):  # of somebody else: then what ranks tell is not known
            descriptor = files.open_to_append(self._wanted)
            os.utime(descriptor)
            os.close(descriptor)
        memory = self._memory.look()
        return [
            replace(view, memory=memory.get((view.run, view.rank)))
            for run in self._runs
            for view in run.look()
        ]

    def title(self) -> str:
        """Return the progress of the experiment at the last look, in words."""
        done = sum(run.is_over for run in self._runs)
        return f"experiment {self._number}: {done} of {len(self._runs)} run(s) done"


COLUMNS = ("run", "line", "rank", "host", "state", "seconds", "coll./s", "waits", "memory", "said")


def rows_of(views: list[RankView]) -> list[tuple[str, ...]]:
    """The rows of a table. Pure."""
    return [
        (
            view.run,
            str(view.line),
            str(view.rank),
            view.host,
            view.state,
            f"{view.seconds:.0f}",
            "" if view.collectives is None else f"{view.collectives:.1f}",
            "" if view.waiting is None else f"{view.waiting:.0%}",
            "" if view.memory is None else f"{view.memory / _MIB:.0f} MiB",
            view.said,
        )
        for view in views
    ]


def slowest(views: list[RankView]) -> str:
    """For whom the others wait, in a sentence; empty if for nobody, or if it is not known. Pure."""
    texts = []
    runs: dict[str, list[RankView]] = defaultdict(list)
    for view in views:
        runs[view.run].append(view)
    for run, ranks in runs.items():
        waiting = [rank for rank in ranks if rank.state == "waiting"]
        running = [rank for rank in ranks if rank.state == "running"]
        told = sorted(
            (each.waiting, each.rank, each.host) for each in running if each.waiting is not None
        )
        if waiting and running:
            who = ", ".join(f"{each.rank} on {each.host}" for each in running[:4])
            more = f" and {len(running) - 4} others" if len(running) > 4 else ""
            texts.append(
                f"run {run}: {len(waiting)} at the end of the line wait for rank {who}{more}"
            )
        elif len(told) > 1 and told[0][0] + 0.2 <= told[1][0]:
            texts.append(f"run {run}: the others wait for rank {told[0][1]} on {told[0][2]}")
    return "; ".join(texts)
