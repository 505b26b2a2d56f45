"""Executes all runs of a job file, and tells what became of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.runner.experiment import record
from horovod.runner.experiment.job_file import canonical_text
from horovod.runner.experiment.lines import Ended, RunContext, RunLines, add
from horovod.runner.experiment.plan import described
from horovod.runner.experiment.pruning import Pruning
from horovod.runner.experiment.side_by_side import in_lanes
from horovod.runner.experiment.trusted import close_to_others

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod.runner.experiment.grid import Run
    from horovod.runner.experiment.job_file import Experiment
    from horovod.runner.experiment.lines import Launch
    from horovod.runner.experiment.record import Record, RunRecord
    from horovod.runner.experiment.side_by_side import Lane
    from horovod.runner.starting.requests import JobFileRequest
    from horovod.runner.supervision.outcome import Outcome

RESOLVED = "riseml-configuration.yml"
# Runs in other states are executed when the experiment is resumed.
_DONE = ("finished", "pruned")


class ExperimentRun:
    """The runs of a job file.

    Args:
        experiment: what to run.
        lanes: where runs are executed, as many of them at a time as there are lanes.
        request: the job file to run.
        launch: starts the ranks of a line, and waits for their end.
        finish: says how a launch ended, and returns its exit code.
    """

    def __init__(
        self,
        experiment: Experiment,
        lanes: Sequence[Lane],
        request: JobFileRequest,
        launch: Launch,
        finish: Callable[[Outcome], int],
    ) -> None:
        self._experiment = experiment
        self._lanes = lanes
        self._settings, self._options = request.settings, request.options
        self._launch = launch
        self._finish = finish

    def run(self, own: Record) -> int:
        """Executes all runs that have not finished; one that fails does not stop those after it.

        Args:
            own: what was noted of it, see :func:`horovod.runner.experiment.record.begin`.

        Returns:
            0, or the exit code of the first run that failed.

        Raises:
            UsageError: the output cannot be written.
        """
        context = self._context(own)
        runs = self._experiment.runs
        records = own.run_records(is_running=False)
        left = [index for index, each in enumerate(records, 1) if each.state not in _DONE]
        if code := self._install(own, left, context):
            return code
        pruning = self._pruning(own, records)
        codes: dict[int, int] = {}

        def work(index: int, lane: Lane) -> bool:
            run, name, folder = runs[index - 1], own.name_of(index), own.folder_of(index)
            attempt = records[index - 1].attempt + 1
            judged = None if pruning is None else pruning.follow(folder, attempt)
            asked = None if judged is None else judged.why_in_vain
            lines = RunLines(run, name, folder, lane, context, asked, attempt)
            ended = self._run(run, name, folder, lines, attempt)
            if judged is not None:
                judged.end()
            codes[index] = ended.exit_code
            return ended.state != "killed"

        if len(self._lanes) > 1 and len(left) > 1:
            self._say("runs execute side by side: the output of ranks is in the logs only")
            in_lanes(left, self._lanes, work)
        else:
            all(work(index, self._lanes[0]) for index in left)
        if len(runs) > 1:
            records = own.run_records(is_running=False)
            for line in record.table(records, self._experiment.file.train.metrics):
                self._say(line)
        self._say(f"experiment {own.number}: output, logs and events are in {own.folder}")
        return next((codes[index] for index in sorted(codes) if codes[index]), 0)

    def _install(self, own: Record, left: Sequence[int], context: RunContext) -> int:
        """Prepares the hosts; without that, all runs that are left have failed."""
        commands = self._experiment.install
        if not commands or not left:
            return 0
        from horovod.runner.experiment.install import install

        code = install(commands, self._lanes, own.folder, context)
        for index in left if code else ():
            folder, name = own.folder_of(index), own.name_of(index)
            add(folder, "run-started", id=name)
            add(folder, "run-ended", id=name, state="failed", exit_code=code)
        if code:
            self._say("train.install failed: no line was started")
        return code

    def _pruning(self, own: Record, records: Sequence[RunRecord]) -> Pruning | None:
        """Return the judge of active runs, which knows those that are done; None without ASHA."""
        train = self._experiment.file.train
        if train.search is None or train.search.method != "asha":
            return None
        pruning = Pruning(train.search, *next(iter(train.metrics.items())))
        for index, each in enumerate(records, 1):
            if each.state in _DONE:
                pruning.follow(own.folder_of(index)).end()
        return pruning

    def _context(self, own: Record) -> RunContext:
        variables = {
            **self._threads(),
            **self._experiment.file.train.env,
            **self._settings.variables,
        }
        return RunContext(
            settings=replace(self._settings, variables=variables),
            options=self._options,
            launch=self._launch,
            finish=self._finish,
            say=self._say,
            live=own.folder / record.MONITORED,
            timeout_s=self._experiment.timeout_s,
            restarts=self._experiment.file.train.restarts,
            shell=self._experiment.shell,
        )

    def _run(self, run: Run, name: str, folder: Path, lines: RunLines, attempt: int) -> Ended:
        record.write(folder / RESOLVED, _resolved(self._experiment, run))
        if run.parameters:
            self._say(f"run {name}: {described(run.parameters)}")
        parameters = dict(run.parameters)
        add(folder, "run-started", id=name, parameters=parameters, attempt=attempt)
        ended = lines.execute()
        add(folder, "run-ended", id=name, state=ended.state, exit_code=ended.exit_code)
        return ended

    def _threads(self) -> dict[str, str]:
        """Return the variable that divides a worker's CPUs among its processes; empty for none."""
        threads = self._experiment.threads
        if threads is None or "OMP_NUM_THREADS" in self._settings.environ:
            return {}
        return {"OMP_NUM_THREADS": str(threads)}

    def _say(self, text: str) -> None:
        self._lanes[0].caller.console.say(text)


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
                (root / str(number)).mkdir(0o755)
                break
            except FileExistsError:  # another experiment was quicker
                number += 1
    except OSError as error:
        raise record.unwritable(root, error) from None
    record.write(root / str(number) / record.JOB_FILE, text)
    close_to_others(root / str(number) / record.JOB_FILE)
    return root / str(number)


def _resolved(experiment: Experiment, run: Run) -> str:
    data = experiment.data
    data["train"]["run"] = [
        line.text if line.on == "all" else {"cmd": line.text, "on": line.on} for line in run.lines
    ]
    if run.parameters:
        data["train"]["parameters"] = {name: [value] for name, value in run.parameters.items()}
    return canonical_text(data)
