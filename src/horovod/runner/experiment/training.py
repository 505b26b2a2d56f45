"""Runs the lines of a job file: each one is a launch, so all ranks have ended it before the next.

The barrier needs no protocol of its own: a launch ends when all its ranks have, and at once when
one of them fails. Each line has a store and a secret of its own, so lines that train can follow one
another.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod.runner.experiment import record
from horovod.runner.experiment.job_file import canonical_text
from horovod.runner.experiment.live import LiveReport
from horovod.runner.experiment.plan import described
from horovod.runner.experiment.side_by_side import in_lanes
from horovod.runner.starting.launch import launch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod.runner.experiment.grid import Run
    from horovod.runner.experiment.job_file import Experiment
    from horovod.runner.experiment.record import Record
    from horovod.runner.experiment.side_by_side import Lane
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.outcome import Outcome

RESOLVED = "riseml-configuration.yml"


class Training:
    """The runs of a job file.

    Args:
        experiment: what to run.
        lanes: where runs are executed, as many of them at a time as there are lanes; the
            ``output_filename`` of their options is not used.
        settings: of the launcher, with any command.
        finish: says how a launch ended, and returns its exit code.
    """

    def __init__(
        self,
        experiment: Experiment,
        lanes: Sequence[Lane],
        settings: JobSettings,
        finish: Callable[[Outcome], int],
    ) -> None:
        self._experiment = experiment
        self._lanes = lanes
        self._settings = settings
        self._finish = finish
        self._folder = Path()

    def run(self, own: Record) -> int:
        """Executes all runs that have not finished; one that fails does not stop those after it.

        Args:
            own: what was noted of it, see :func:`horovod.runner.experiment.record.begin`.

        Returns:
            0, or the exit code of the first run that failed.

        Raises:
            UsageError: the output cannot be written.
        """
        self._folder = own.folder
        runs = self._experiment.runs
        records = own.run_records(is_running=False)
        left = [index for index, each in enumerate(records, 1) if each.state != "finished"]
        codes: dict[int, int] = {}

        def work(index: int, lane: Lane) -> bool:
            name, folder = own.name_of(index), own.folder_of(index)
            codes[index], is_killed = self._run(runs[index - 1], name, folder, lane)
            return not is_killed

        if len(self._lanes) > 1 and len(left) > 1:
            self._say("runs go on side by side: what ranks write is in the logs only")
            in_lanes(left, self._lanes, work)
        else:
            all(work(index, self._lanes[0]) for index in left)
        if len(runs) > 1:
            for line in record.table(own.run_records(is_running=False)):
                self._say(line)
        self._say(f"experiment {own.number}: output, logs and events are in {own.folder}")
        return next((codes[index] for index in sorted(codes) if codes[index]), 0)

    def _run(self, run: Run, name: str, folder: Path, lane: Lane) -> tuple[int, bool]:
        record.write(folder / RESOLVED, _resolved(self._experiment, run))
        if run.parameters:
            self._say(f"run {name}: {described(run.parameters)}")
        _add(folder, "run-started", id=name, parameters=dict(run.parameters))
        code, state = 0, "finished"
        for index, line in enumerate(run.lines, 1):
            outcome = self._launch(line, index, run, name, folder, lane)
            code = self._finish(outcome)
            if code != 0:
                state = "killed" if outcome.stop_signal else "failed"
                self._say(f"run {name}: line {index} of {len(run.lines)} {state}: {line}")
                break
        _add(folder, "run-ended", id=name, state=state, exit_code=code)
        return code, state == "killed"

    def _launch(
        self, line: str, index: int, run: Run, name: str, folder: Path, lane: Lane
    ) -> Outcome:
        own = {**run.variables, "OUTPUT_DIR": str(folder), "EXPERIMENT_ID": name}
        variables = {**self._threads(), **self._settings.variables, **own}
        settings = replace(self._settings, command=("bash", "-c", line), variables=variables)
        logs = str(folder / record.LOGS / f"line-{index:02d}")
        hosts = [slot.hostname for slot in lane.slots]
        _add(folder, "line-started", line=index, of=len(run.lines), text=line, hosts=hosts)
        began_s = time.monotonic()
        exits: list[RankExit] = []

        def on_exit(ended: RankExit) -> None:
            exits.append(ended)
            _add(
                folder, "rank-ended", line=index, rank=ended.rank, host=ended.hostname,
                exit_code=ended.exit_code, seconds=round(ended.at_s - began_s, 3),
            )  # fmt: skip

        options = replace(lane.options, output_filename=logs, on_exit=on_exit)
        live = LiveReport(self._folder / record.MONITORED, folder / record.LIVE, len(hosts))
        outcome = launch(lane.slots, settings, options, live.using)
        failure = outcome.failure
        _add(
            folder,
            "line-ended",
            line=index,
            exit_code=outcome.exit_code,
            seconds=round(time.monotonic() - began_s, 3),
            **({} if failure is None else {"rank": failure.rank, "host": failure.hostname}),
        )
        if (last := straggler(exits, time.monotonic() - began_s)) is not None:
            rank, host, waited_s = last
            self._say(
                f"run {name}: line {index}: all waited {waited_s:.1f} s for rank {rank} on {host}"
            )
        return outcome

    def _threads(self) -> dict[str, str]:
        """What the CPUs of a worker are for each of its processes."""
        threads = self._experiment.threads
        if threads is None or "OMP_NUM_THREADS" in self._settings.environ:
            return {}
        return {"OMP_NUM_THREADS": str(threads)}

    def _say(self, text: str) -> None:
        self._lanes[0].options.console.say(text)


def straggler(exits: Sequence[RankExit], line_s: float) -> tuple[int, str, float] | None:
    """For whom all others have waited at the end of a line, if it was for long. Pure.

    Args:
        exits: of the ranks, as they have ended by themselves.
        line_s: how long the line took, in seconds.

    Returns:
        Rank, host, and for how many seconds; None if it was less than a second, or than a tenth of
        the line.
    """
    if len(exits) < 2 or any(each.exit_code for each in exits):
        return None
    *_, before, last = sorted(exits, key=lambda each: each.at_s)
    waited_s = last.at_s - before.at_s
    return (last.rank, last.hostname, waited_s) if waited_s >= max(1.0, 0.1 * line_s) else None


def new_folder(root: Path, job_file: str) -> Path:
    """A folder with the next number, which is the experiment's alone, and a copy of its file.

    Raises:
        UsageError: it cannot be written, or the file cannot be read.
    """
    try:
        text = Path(job_file).read_text(encoding="utf-8")
        root.mkdir(parents=True, exist_ok=True)
        numbers = [int(each.name) for each in root.iterdir() if each.name.isdecimal()]
        number = max(numbers, default=0) + 1
        while True:
            try:
                (root / str(number)).mkdir()
                break
            except FileExistsError:  # another experiment was quicker
                number += 1
    except OSError as error:
        raise record.unwritable(root, error) from None
    record.write(root / str(number) / record.JOB_FILE, text)
    return root / str(number)


def _add(folder: Path, event: str, **more: Any) -> None:
    line = json.dumps({"time": round(time.time(), 3), "event": event, **more})
    record.write(folder / record.EVENTS, line + "\n", append=True)


def _resolved(experiment: Experiment, run: Run) -> str:
    data = experiment.data
    data["train"]["run"] = list(run.lines)
    if run.parameters:
        data["train"]["parameters"] = {name: [value] for name, value in run.parameters.items()}
    return canonical_text(data)
