"""Runs that are chosen in place of the whole grid, and which of them are not worth more time.

Optuna chooses and judges. What is chosen does not depend on results, so all runs are known before
the first one begins, and are the same when the experiment is resumed.
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
        optuna = _optuna()
        pruner = optuna.pruners.SuccessiveHalvingPruner(
            min_resource=search.min_results, reduction_factor=search.reduction
        )
        direction = "maximize" if goal == "max" else "minimize"
        self._study = optuna.create_study(direction=direction, pruner=pruner)
        self._metric = metric
        self._lock = threading.Lock()

    def follow(self, folder: Path) -> Judged:
        """Judges the run that writes its results to a folder."""
        with self._lock:
            return Judged(self._study, self._lock, self._metric, folder)


class Judged:
    """A run that is compared with the others; see :class:`Pruning`."""

    def __init__(self, study: Any, lock: threading.Lock, metric: str, folder: Path) -> None:
        self._study = study
        self._trial = study.ask()
        self._lock = lock
        self._metric = metric
        self._results = NewLines(folder / record.RESULTS)
        self._value = math.nan
        self._num_results = 0
        self._attempt = 1

    def why_in_vain(self) -> str:
        """Why the run is not worth more time, after what it has reported; nothing if it is."""
        for line in self._results.read():
            attempt, value = _value_in(line, self._metric)
            if value is None or attempt < self._attempt:
                continue
            if attempt > self._attempt:  # what a failed one has reported does not count
                self._begin_again(attempt)
            self._value, self._num_results = value, self._num_results + 1
            with self._lock:
                self._trial.report(value, self._num_results)
                is_poor = self._trial.should_prune()
            if is_poor:
                result = f"{self._metric}={value:.6g} in result {self._num_results}"
                return f"the run is pruned: others have better than {result}"
        return ""

    def _begin_again(self, attempt: int) -> None:
        from optuna.trial import TrialState

        with self._lock:
            if self._num_results:
                self._study.tell(self._trial, state=TrialState.FAIL)
                self._trial = self._study.ask()
        self._attempt, self._num_results, self._value = attempt, 0, math.nan

    def end(self, state: str) -> None:
        """The run has ended in a state of :class:`RunRecord`."""
        self.why_in_vain()  # what came last counts, too
        from optuna.trial import TrialState

        with self._lock:
            if state == "finished" and not math.isnan(self._value):
                self._study.tell(self._trial, self._value)
            else:
                is_pruned = state == "pruned" and self._num_results
                told = TrialState.PRUNED if is_pruned else TrialState.FAIL
                self._study.tell(self._trial, state=told)


def _value_in(line: str, metric: str) -> tuple[int, float | None]:
    """The attempt that reported, and the value; None if it is no number."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):  # written in part, or by others
        reported = json.loads(line)
        value = reported["metrics"][metric]
        if isinstance(value, int | float):
            return int(reported.get("attempt", 1)), float(value)
    return 1, None
