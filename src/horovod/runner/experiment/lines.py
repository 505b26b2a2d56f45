"""Executes the lines of one run: each one is a launch, so all ranks have ended it before the next.

The barrier needs no protocol of its own: a launch ends when all its ranks have, and at once when
one of them fails. Each line has a store and a secret of its own, so lines that train can follow one
another.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from horovod.runner.experiment import record
from horovod.runner.experiment.grid import SHELL
from horovod.runner.experiment.live import LiveReport
from horovod.runner.experiment.stops import TIMEOUT_CODE, Stops
from horovod.runner.starting.requests import FixedRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from horovod.runner.experiment.grid import Line, Run
    from horovod.runner.experiment.side_by_side import Lane
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.starting.requests import Caller, LaunchOptions
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.outcome import Outcome

    Launch = Callable[[Line, FixedRequest, Caller], Outcome]


# As a shell has it, of a command that is not there.
_NOT_FOUND = 127


@dataclass(frozen=True)
class RunContext:
    """Context that the lines of all runs share.

    Attributes:
        settings: of the launcher, with any command.
        options: of the launcher; their ``output_filename`` is not used.
        launch: starts the ranks of a line, and waits for their end.
        finish: says how a launch ended, and returns its exit code.
        say: takes one line for the user.
        live: where what ranks tell is wanted, see :class:`LiveReport`.
        timeout_s: for all lines of a run; None for any time.
        restarts: how often lines of a run may be started again after a failure.
        shell: the words in front of what is installed.
        told: the lines of which it was said that they leave something running.
    """

    settings: JobSettings
    options: LaunchOptions
    launch: Launch
    finish: Callable[[Outcome], int]
    say: Callable[[str], None]
    live: Path
    timeout_s: float | None = None
    restarts: int = 0
    shell: tuple[str, ...] = SHELL
    told: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Ended:
    """End of a run: its state, and the exit code of the rank that failed first, or 0."""

    state: str
    exit_code: int = 0


class RunLines:
    """The lines of one run.

    Args:
        run: what to execute.
        name: its id.
        folder: of its output.
        lane: where to execute it.
        context: see there.
        why_in_vain: says why the run is not worth more time, or nothing; None if nobody asks.
        attempt: the number of this attempt at the run; each restart of a line is one more.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        folder: Path,
        lane: Lane,
        context: RunContext,
        why_in_vain: Callable[[], str] | None = None,
        attempt: int = 1,
    ) -> None:
        self._run = run
        self._name = name
        self._folder = folder
        self._lane = lane
        self._context = context
        self._why_in_vain = why_in_vain
        self._attempt = attempt
        self._restarts_left = context.restarts
        self._began_s = time.monotonic()

    def execute(self) -> Ended:
        """Executes one line after the other, up to the first that fails for good."""
        for index, line in enumerate(self._run.lines, 1):
            ended = self._execute(line, index)
            if ended.state != "finished":
                what = f"line {index} of {len(self._run.lines)} {ended.state}"
                self._context.say(f"run {self._name}: {what}: {line}")
                return ended
        return Ended("finished")

    def _execute(self, line: Line, index: int) -> Ended:
        """Executes a line, and again if it fails and may be restarted."""
        times = 0
        while True:
            times += 1
            stops = Stops(self._context.timeout_s, self._began_s, self._why_in_vain)
            outcome = self._launch(line, index, times, stops)
            code = self._context.finish(outcome)
            if stops.is_pruned:
                return Ended("pruned")
            if stops.is_late:
                return Ended("failed", TIMEOUT_CODE)
            if code == 0 and outcome.files_error:  # what has ended well is not run once more
                what = f"its logs are incomplete: {outcome.files_error}"
                self._context.say(f"run {self._name}: line {index}: {what}")
                return Ended("failed", 1)
            if code == 0:
                return Ended("finished")
            if outcome.stop_signal:
                return Ended("killed", code)
            if outcome.failure is not None and outcome.failure.start_error and code == _NOT_FOUND:
                what = f"train.shell can name a shell other than {line.shell[0]}"
                self._context.say(f"run {self._name}: line {index}: {what}, such as sh -e -c")
            if self._restarts_left == 0:
                return Ended("failed", code)
            self._restarts_left -= 1
            self._attempt += 1
            again = f"it is restarted; {self._restarts_left} restart(s) remain"
            self._context.say(f"run {self._name}: line {index} failed: {again}")

    def _launch(self, line: Line, index: int, times: int, stops: Stops) -> Outcome:
        slots, context = self._lane.slots, self._context
        name = f"line-{index:02d}" if times == 1 else f"line-{index:02d}.{times}"
        add(
            self._folder, "line-started", line=index, of=len(self._run.lines), text=str(line),
            hosts=[slot.hostname for slot in slots], logs=name, attempt=self._attempt,
        )  # fmt: skip
        began_s = time.monotonic()
        exits: list[RankExit] = []

        def on_exit(ended: RankExit) -> None:
            exits.append(ended)
            add(
                self._folder, "rank-ended", line=index, rank=ended.rank, host=ended.hostname,
                exit_code=ended.exit_code, seconds=round(ended.at_s - began_s, 3),
            )  # fmt: skip

        live = LiveReport(context.live, self._folder / record.LIVE, len(slots))
        with stops.watching() as alarm:
            logs = str(self._folder / record.LOGS / name)
            settings = replace(
                context.settings,
                command=line.command,
                variables={**context.settings.variables, **self._variables(index)},
            )
            request = FixedRequest(settings, replace(context.options, output_filename=logs), slots)
            caller = replace(self._lane.caller, on_exit=on_exit, alarm=alarm, store_user=live.using)
            outcome = context.launch(line, request, caller)
        seconds = time.monotonic() - began_s
        failure = outcome.failure
        where = {} if failure is None else {"rank": failure.rank, "host": failure.hostname}
        add(
            self._folder, "line-ended", line=index, exit_code=outcome.exit_code,
            seconds=round(seconds, 3), **where,
        )  # fmt: skip
        if outcome.left_running and index not in context.told:
            context.told.add(index)
            what = f"background processes that it left were ended: {outcome.left_running}"
            context.say(f"run {self._name}: line {index}: {what}")
        if line.on == "all" and (last := straggler(exits, seconds)) is not None:
            rank, host, waited_s = last
            what = f"all waited {waited_s:.1f} s for rank {rank} on {host}"
            context.say(f"run {self._name}: line {index}: {what}")
        return outcome

    def _variables(self, index: int) -> Mapping[str, str]:
        return {
            **self._run.variables,
            "OUTPUT_DIR": str(self._folder),
            "EXPERIMENT_ID": self._name,
            "EXPERIMENT_LINE": f"{index}",
            "EXPERIMENT_ATTEMPT": f"{self._attempt}",
        }


def straggler(exits: Sequence[RankExit], line_s: float) -> tuple[int, str, float] | None:
    """For whom all others have waited at the end of a line, if it was for long. Pure.

    Args:
        exits: of the ranks, as they have ended by themselves.
        line_s: how long the line took, in seconds.

    Returns:
        Rank, host, and for how many seconds; None if it was less than a second, or than a tenth of
        the line.
    """
    if len(exits) < 2 or any(rank_exit.exit_code for rank_exit in exits):
        return None
    *_, before, last = sorted(exits, key=lambda each: each.at_s)
    waited_s = last.at_s - before.at_s
    return (last.rank, last.hostname, waited_s) if waited_s >= max(1.0, 0.1 * line_s) else None


def add(folder: Path, event: str, **more: Any) -> None:
    """Notes something that happened to a run.

    Raises:
        UsageError: the file cannot be written.
    """
    line = json.dumps({"time": round(time.time(), 3), "event": event, **more})
    record.write(folder / record.EVENTS, line + "\n", append=True)
