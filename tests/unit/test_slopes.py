"""The lines that a soak fits: a slope is found, noise is none, and the error is honest."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "slopes.py"
STEPS = [float(each) for each in range(0, 80_000, 200)]
PAGE = 4096.0


@pytest.fixture(name="slopes", scope="module")
def _slopes() -> Any:
    spec = importlib.util.spec_from_file_location("slopes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["slopes"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_a_leak_is_found_with_its_size(slopes: Any) -> None:
    dice = random.Random(1)
    values = [5e7 + 2.5 * step + dice.gauss(0, 20_000) for step in STEPS]
    found = slopes.fit(STEPS, values, PAGE, num_rows=33)
    assert not found.is_zero
    assert abs(found.per_1000 - 2500) < 4 * found.error
    assert found.at_most > found.per_1000


def test_noise_has_a_slope_of_zero_as_often_as_promised(slopes: Any) -> None:
    alarms = 0
    for seed in range(400):
        dice = random.Random(seed)
        values = [5e7 + dice.gauss(0, 50_000) for _ in STEPS]
        alarms += not slopes.fit(STEPS, values, 1).is_zero
    # One side of 5 % would be 10 of 400; the larger of two errors makes it fewer.
    assert alarms <= 15


def test_a_leak_in_pieces_is_found(slopes: Any) -> None:
    values = [5e7 + PAGE * (step // 3_000) for step in STEPS]
    assert not slopes.fit(STEPS, values, PAGE, num_rows=33).is_zero


@pytest.mark.parametrize("at", [10_000, 40_000, 70_000])
def test_one_more_piece_is_no_slope(slopes: Any, at: int) -> None:
    values = [5e7 + 100 * PAGE * (step > at) for step in STEPS]
    found = slopes.fit(STEPS, values, PAGE, num_rows=33)
    assert found.is_zero
    assert found.at_most > 0


def test_what_shrinks_does_not_grow(slopes: Any) -> None:
    found = slopes.fit(STEPS, [5e7 - 10 * step for step in STEPS], PAGE)
    assert found.is_zero
    assert found.at_most == 0
    assert (found.begin, found.end) == (pytest.approx(5e7 - 19_000), pytest.approx(5e7 - 779_000))


def test_too_few_samples_are_an_error(slopes: Any) -> None:
    with pytest.raises(ValueError, match="4 samples are too few for a line"):
        slopes.fit([1, 2, 3, 4], [1, 1, 1, 1], 1)


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [(0.975, 18, 2.1009), (0.975, 3, 3.1824), (0.9995, 18, 3.9216), (0.95, 10, 1.8125)],
)
def test_quantiles_are_those_of_tables(
    slopes: Any, probability: float, freedom: int, quantile: float
) -> None:
    assert slopes.quantile_of_t(probability, freedom) == pytest.approx(quantile, rel=0.03)
