"""Runs of a search that are not worth more time."""

from __future__ import annotations

import json
import math
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod.runner.experiment import record
from horovod.runner.experiment.new_lines import NewLines

if TYPE_CHECKING:
    from pathlib import Path

    from horovod.runner.experiment.schema import Search


class Pruning:
    """Asynchronous successive halving: of the runs that have reported as often, the best go on.

    Args:
        search: after how many results a run is judged first, and which share goes on.
        metric: by what.
        goal: "max" or "min".
    """

    def __init__(self, search: Search, metric: str, goal: str) -> None:
        self._first = search.min_results
        self._reduction = search.reduction
        self._metric = metric
        self._sign = -1.0 if goal == "max" else 1.0
        # By the number of results at which runs are judged: the value of each run there.
        self._rungs: dict[int, dict[Judged, float]] = {}
        self._lock = threading.Lock()

    def follow(self, folder: Path, attempt: int = 1) -> Judged:
        """Judge the run that writes its results to a folder.

        Args:
            folder: of the run.
            attempt: the number of the attempt that counts; what earlier ones reported does not.
        """
        return Judged(self, self._metric, folder, attempt)

    def is_poor(self, run: Judged, num_results: int, value: float) -> bool:
        """Take note of a result, and return whether its run is not worth more time."""
        if not self._is_rung(num_results):
            return False
        if math.isnan(value):
            return True
        with self._lock:
            rung = self._rungs.setdefault(num_results, {})
            rung[run] = self._sign * value
            return rung[run] > sorted(rung.values())[max(len(rung) // self._reduction, 1) - 1]

    def forget(self, run: Judged) -> None:
        """Compare other runs, and the next attempt at this one, with nothing that it reported."""
        with self._lock:
            for rung in self._rungs.values():
                rung.pop(run, None)

    def _is_rung(self, num_results: int) -> bool:
        at = self._first
        while at < num_results:
            at *= self._reduction
        return at == num_results


class Judged:
    """A run that is compared with the others; see :class:`Pruning`."""

    def __init__(self, pruning: Pruning, metric: str, folder: Path, attempt: int) -> None:
        self._pruning = pruning
        self._metric = metric
        self._results = NewLines(folder / record.RESULTS)
        self._num_results = 0
        self._attempt = attempt

    def why_in_vain(self) -> str:
        """Return why the results make more time for the run pointless; empty if they do not."""
        why = ""
        for line in self._results.read():
            attempt, value = _value_in(line, self._metric)
            if value is None or attempt < self._attempt:
                continue
            if attempt > self._attempt:  # what a failed one has reported does not count
                self._pruning.forget(self)
                self._attempt, self._num_results, why = attempt, 0, ""
            self._num_results += 1
            if self._pruning.is_poor(self, self._num_results, value) and not why:
                result = f"{self._metric}={value:.6g} in result {self._num_results}"
                why = f"the run is pruned: others are better than {result}"
        return why

    def end(self) -> None:
        """The run has ended."""
        self.why_in_vain()  # what came last counts, too


def _value_in(line: str, metric: str) -> tuple[int, float | None]:
    """The attempt that reported, and the value; None if it is no number."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):  # written in part, or by others
        reported = json.loads(line)
        value = reported["metrics"][metric]
        if isinstance(value, int | float):
            return int(reported.get("attempt", 1)), float(value)
    return 1, None
