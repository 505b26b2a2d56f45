"""Runs that are chosen in place of the whole grid, and which of them are not worth more time.

Optuna chooses. What is chosen does not depend on results, so all runs are known before the first
one begins, and are the same when the experiment is resumed.
"""

from __future__ import annotations

import json
import math
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from horovod.runner.experiment import record
from horovod.runner.experiment.new_lines import NewLines

_WHOLE = re.compile(r"[-+]?\d{1,18}")

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from horovod.runner.experiment.schema import Between, Search


def sampled(
    values: Mapping[str, Sequence[str]], between: Mapping[str, Between], search: Search
) -> list[dict[str, str]]:
    """The parameters of each run, chosen at random; the same ones each time.

    Args:
        values: of parameters that have some values.
        between: bounds of the others.
        search: how many runs, and the seed.

    Raises:
        ValueError: bounds make no sense, or Optuna is not installed.
    """
    optuna = _optuna()
    distributions = {
        **{
            name: optuna.distributions.CategoricalDistribution(list(each))
            for name, each in values.items()
        },
        **{name: _distribution(optuna, each) for name, each in between.items()},
    }
    ordered = {name: distributions[name] for name in sorted(distributions)}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=search.seed))
    trials = [study.ask(ordered) for _ in range(search.runs)]
    return [{name: _text(trial.params[name]) for name in ordered} for trial in trials]


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise ValueError("needs Optuna, which is not installed: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(optuna: Any, given: Between) -> Any:
    is_log = given.log == "true"
    are_whole = all(map(_WHOLE.fullmatch, (given.min, given.max)))
    if given.type == "int" and not are_whole:
        raise ValueError(f"{given.min} and {given.max} must be whole numbers for type: int")
    if given.type != "float" and are_whole:
        low_int, high_int = int(given.min), int(given.max)
        is_possible = low_int <= high_int and (low_int > 0 or not is_log)
        if is_possible and given.type is None and high_int - low_int <= 1:
            raise ValueError(
                f"there is no whole number between {low_int} and {high_int}: write type: float for "
                "numbers between them, or type: int for one of these two"
            )
        if is_possible:
            return optuna.distributions.IntDistribution(low_int, high_int, log=is_log)
    try:
        low, high = float(given.min), float(given.max)
        if not math.isfinite(low) or not math.isfinite(high):
            raise ValueError
        return optuna.distributions.FloatDistribution(low, high, log=is_log)
    except ValueError:
        least = "above 0" if is_log else "numbers"
        raise ValueError(
            f"nothing lies between {given.min} and {given.max}: they must be {least}, the smaller "
            "first"
        ) from None


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


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
                why = f"the run is pruned: others have better than {result}"
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
