"""Runs that are chosen in place of the whole grid.

Optuna chooses. What is chosen does not depend on results, so all runs are known before the first
one begins, and are the same when the experiment is resumed.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

_WHOLE = re.compile(r"[-+]?\d{1,18}")

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
            f"there is nothing between {given.min} and {given.max}: they must be {least}, the "
            "smaller first"
        ) from None


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
