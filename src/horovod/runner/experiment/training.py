"""Runs the lines of a job file: each one is a launch, so all ranks have ended it before the next.

The barrier needs no protocol of its own: a launch ends when all its ranks have, and at once when
one of them fails. Each line has a store and a secret of its own, so lines that train can follow one
another.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError
from horovod.runner.experiment.job_file import canonical_text
from horovod.runner.experiment.plan import described
from horovod.runner.starting.launch import LaunchOptions, launch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod.runner.experiment.grid import Run
    from horovod.runner.experiment.job_file import Experiment
    from horovod.runner.placing.hosts import Slot
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.supervision.outcome import Outcome

RESOLVED = "riseml-configuration.yml"
EVENTS = "events.jsonl"
LOGS = "logs"


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        state: finished, failed or killed.
        exit_code: 0, or that of the rank that failed first.
        seconds: how long it took.
    """

    state: str
    exit_code: int
    seconds: float


class Training:
    """The runs of a job file.

    Args:
        experiment: what to run.
        slots: where each rank runs.
        settings: of the launcher, with any command.
        options: how the launcher behaves; their ``output_filename`` is not used.
        finish: says how a launch ended, and returns its exit code.
    """

    def __init__(
        self,
        experiment: Experiment,
        slots: Sequence[Slot],
        settings: JobSettings,
        options: LaunchOptions,
        finish: Callable[[Outcome], int],
    ) -> None:
        self._experiment = experiment
        self._slots = slots
        self._settings = settings
        self._options = options
        self._finish = finish

    def run(self) -> int:
        """Executes all runs; a run that fails does not stop those after it.

        Returns:
            0, or the exit code of the first run that failed.

        Raises:
            UsageError: the output cannot be written.
        """
        runs = self._experiment.runs
        root = Path(self._settings.cwd, "output", self._experiment.file.project)
        number, folder = _new_folder(root)
        ended: list[Ended] = []
        for index, run in enumerate(runs, 1):
            several = len(runs) > 1
            name = f"{number}.{index}" if several else f"{number}"
            ended.append(self._run(run, name, folder / str(index) if several else folder))
            if ended[-1].state == "killed":
                break
        if len(runs) > 1:
            for line in table(runs, ended):
                self._say(line)
        self._say(f"experiment {number}: output, logs and events are in {folder}")
        return next((each.exit_code for each in ended if each.exit_code), 0)

    def _run(self, run: Run, name: str, folder: Path) -> Ended:
        began_s = time.monotonic()
        _write(folder, RESOLVED, _resolved(self._experiment, run))
        events = _Events(folder)
        if run.parameters:
            self._say(f"run {name}: {described(run)}")
        events.add("run-started", id=name, parameters=dict(run.parameters))
        code, state = 0, "finished"
        for index, line in enumerate(run.lines, 1):
            outcome = self._launch(line, index, run, name, folder, events)
            code = self._finish(outcome)
            if code != 0:
                state = "killed" if outcome.stop_signal else "failed"
                self._say(f"run {name}: line {index} of {len(run.lines)} {state}: {line}")
                break
        events.add("run-ended", id=name, state=state, exit_code=code)
        return Ended(state, code, time.monotonic() - began_s)

    def _launch(
        self, line: str, index: int, run: Run, name: str, folder: Path, events: _Events
    ) -> Outcome:
        own = {**run.variables, "OUTPUT_DIR": str(folder), "EXPERIMENT_ID": name}
        variables = {**self._threads(), **self._settings.variables, **own}
        settings = replace(self._settings, command=("bash", "-c", line), variables=variables)
        logs = str(folder / LOGS / f"line-{index:02d}")
        events.add("line-started", line=index, of=len(run.lines), text=line)
        began_s = time.monotonic()
        outcome = launch(self._slots, settings, replace(self._options, output_filename=logs))
        failure = outcome.failure
        events.add(
            "line-ended",
            line=index,
            exit_code=outcome.exit_code,
            seconds=round(time.monotonic() - began_s, 3),
            **({} if failure is None else {"rank": failure.rank, "host": failure.hostname}),
        )
        return outcome

    def _threads(self) -> dict[str, str]:
        """What the CPUs of a worker are for each of its processes."""
        cpus = self._experiment.file.train.resources.cpus
        if cpus is None or "OMP_NUM_THREADS" in self._settings.environ:
            return {}
        return {"OMP_NUM_THREADS": str(max(1, int(cpus / self._experiment.processes)))}

    def _say(self, text: str) -> None:
        self._options.console.say(text)


def table(runs: Sequence[Run], ended: Sequence[Ended]) -> list[str]:
    """A line for each run: its number, state, seconds and parameters. Pure."""
    rows = [("run", "state", "seconds", "parameters")]
    for index, run in enumerate(runs):
        if index < len(ended):
            state, seconds = ended[index].state, f"{ended[index].seconds:.1f}"
        else:
            state, seconds = "pending", ""
        rows.append((str(index + 1), state, seconds, described(run)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["  ".join([*map(str.ljust, row[:3], widths), row[3]]).rstrip() for row in rows]


class _Events:
    """A file with a line of JSON for whatever happens in a run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS

    def add(self, event: str, **more: Any) -> None:
        record = {"time": round(time.time(), 3), "event": event, **more}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise _unwritable(self._path, error) from None


def _new_folder(root: Path) -> tuple[int, Path]:
    """A folder with the next number, which is the experiment's alone."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        numbers = [int(each.name) for each in root.iterdir() if each.name.isdecimal()]
        number = max(numbers, default=0) + 1
        while True:
            try:
                (root / str(number)).mkdir()
                return number, root / str(number)
            except FileExistsError:  # another experiment was quicker
                number += 1
    except OSError as error:
        raise _unwritable(root, error) from None


def _resolved(experiment: Experiment, run: Run) -> str:
    data = experiment.data
    data["train"]["run"] = list(run.lines)
    if run.parameters:
        data["train"]["parameters"] = {name: [value] for name, value in run.parameters.items()}
    return canonical_text(data)


def _write(folder: Path, name: str, text: str) -> None:
    try:
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(folder / name, error) from None


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write the output of the experiment: {path}: {error.strerror}")
