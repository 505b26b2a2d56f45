"""Training by tapes and by Keras between real processes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras_cases import everything_of_three_ranks, everything_of_two_ranks
from keras_training import FITS, TAPES, assert_close, fit_alone, tape_alone

import horovod


@pytest.fixture(scope="module")
def two_ranks() -> list[dict[str, Any]]:
    """What each rank of one job returned, by case: TensorFlow takes long to start."""
    results: list[dict[str, Any]] = horovod.run(everything_of_two_ranks, num_proc=2)
    return results


@pytest.fixture(autouse=True)
def restored_floats() -> Any:
    """The trained models are of float64."""
    before = keras.config.floatx()
    yield
    keras.config.set_floatx(before)


@pytest.mark.parametrize("name", TAPES)
def test_a_tape_trains_as_one_process_with_all_data(name: str, two_ranks: Any) -> None:
    expected = tape_alone(2, TAPES[name])
    for mine in two_ranks:
        assert_close(mine[f"tape: {name}"], expected, TAPES[name].tolerance)


@pytest.mark.parametrize("name", FITS)
def test_fit_trains_as_one_process_with_all_data(name: str, two_ranks: Any) -> None:
    weights, losses = fit_alone(2, FITS[name])
    for mine in two_ranks:
        assert_close(mine[f"fit: {name}"][0], weights, FITS[name].tolerance)
    if FITS[name].passes == 1:
        assert two_ranks[0][f"fit: {name}"][1] == pytest.approx(losses, rel=1e-6)
    assert two_ranks[0][f"fit: {name}"][1] == two_ranks[1][f"fit: {name}"][1]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("adasum_of_equal_gradients", 6.0),
        ("generic_names_of_ranks_with_other_variables", 5.5),
        ("two_optimizers_in_one_step", [-5.5, -11.0]),
        ("an_infinite_gradient_of_one_rank", (-0.5, 4.0)),
        ("learning_rates", pytest.approx([0.6, 0.8, 0.8, 0.4])),
        ("values", (0.5, [0, 1, 1], 1.0)),
    ],
)
def test_both_ranks_see_the_same(case: str, expected: Any, two_ranks: Any) -> None:
    assert [mine[case] for mine in two_ranks] == [expected, expected]


def test_layers_of_a_rank(two_ranks: Any) -> None:
    first, second = (mine["layers_of_a_rank"] for mine in two_ranks)
    assert first == [[-5.5, -0.5]] * 2
    assert second == [[-5.5, -5.0]] * 2


def test_ranks_may_number_their_layers_differently(two_ranks: Any) -> None:
    first, second = (mine["numbers_of_layers_differ"] for mine in two_ranks)
    assert first == second


def test_one_rank_loads_the_model(two_ranks: Any) -> None:
    (first, *kind), (second, *other_kind) = (mine["one_rank_loads_the_model"] for mine in two_ranks)
    assert kind == other_kind == ["horovod._keras", 10]
    assert all(map(np.array_equal, first, second))
    assert int(first[4]) == 1 + 4, "iterations of the saved model, and those of the job"


def test_variables_of_a_rank_stay(two_ranks: Any) -> None:
    assert [mine["variables_of_a_rank_stay"] for mine in two_ranks] == [[2.0, 3.0], [2.0, 4.0]]


def test_metrics_that_differ_are_an_error_everywhere(two_ranks: Any) -> None:
    first, second = (mine["metrics_that_differ"] for mine in two_ranks)
    assert first == second
    assert "rank 1: it has the metrics ['loss', 'val_loss'], rank 0 has ['loss']" in first


def test_process_sets() -> None:
    everyones = horovod.run(everything_of_three_ranks, num_proc=3)
    for case in ("tape", "optimizer"):
        assert [mine[case] for mine in everyones] == [50.5, 10.0, 50.5]
