"""Weights of several backward passes: which pass a gradient belongs to, and what it counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from horovod._train.gradients import BackwardPasses
from horovod._train.weighted_passes import WeightedPasses
from horovod._train.weights import GradientWeight, shares
from horovod.errors import UsageError

ALONE, NESTED = (lambda: False), (lambda: True)


@pytest.mark.parametrize("weights", [(1.0, 3.0, 2.0), (0.0, 2.0), (2.0, 0.0), (5.0,), (0.0, 0.0)])
def test_equal_weights_give_the_sum_and_others_count_as_often_as_they_say(
    weights: tuple[float, ...],
) -> None:
    gradients = [10.0, 20.0, 40.0][: len(weights)]
    value = total = 0.0
    for weight, gradient in zip(weights, gradients, strict=True):
        kept, taken = shares(total, total + weight, weight, len(weights))
        value = value * kept + (gradient * taken if taken else 0.0)
        total += weight
    expected = len(weights) * np.average(gradients, weights=weights) if total else 0.0
    assert value == pytest.approx(expected)


def test_a_weight_is_asked_for_once_in_a_step() -> None:
    asked = []

    def source() -> int:
        asked.append(1)
        return len(asked)

    weight = GradientWeight(source)
    assert [weight.of_step(), weight.of_step()] == [1.0, 1.0]
    weight.begin_step()
    assert weight.of_step() == 2.0
    weight.change(None)
    assert weight.of_step() is None
    weight.change(5)
    assert weight.of_step() == 5.0


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), "many"])
def test_a_weight_is_a_finite_number_of_at_least_0(wrong: Any) -> None:
    with pytest.raises(UsageError, match="weight="):
        GradientWeight(wrong)
    returns_it = GradientWeight(lambda: wrong)
    with pytest.raises(UsageError, match="weight="):
        returns_it.of_step()


def test_a_parameter_that_arrives_again_begins_a_pass() -> None:
    passes: BackwardPasses[str] = BackwardPasses()
    assert [passes.begins(key, 7, NESTED) for key in "aba"] == [True, False, True]


def test_a_later_run_begins_a_pass_unless_it_is_part_of_another() -> None:
    passes: BackwardPasses[str] = BackwardPasses()
    assert passes.begins("a", 1, ALONE)
    assert passes.begins("b", 2, ALONE)
    # Runs 4 and 5 are checkpoints in run 3, which has not come to its own parameters yet.
    assert passes.begins("a", 4, ALONE)
    assert not passes.begins("b", 5, NESTED)
    assert not passes.begins("c", 3, ALONE)
    assert not passes.begins("d", 5, NESTED)


def test_whoever_expects_a_pass_gets_one() -> None:
    passes: BackwardPasses[str] = BackwardPasses()
    passes.begins("a", 1, ALONE)
    passes.expect()
    assert passes.begins("b", 1, NESTED)
    assert not passes.begins("c", 1, NESTED)


def test_a_parameter_that_a_pass_leaves_out_counts_as_zero_there() -> None:
    passes: WeightedPasses[str] = WeightedPasses(None)
    passes.change(1.0)
    first = passes.arrive("a", 2, 1, ALONE)
    passes.change(3.0)
    second = passes.arrive("b", 2, 2, ALONE)
    assert (first.taken, second.taken) == (2.0, 1.5)
    assert first.is_first
    assert second.is_first
    assert (passes.complete("a"), passes.complete("b"), passes.complete("c")) == (0.25, 1.0, None)
    assert passes.of_step() == 4.0
    passes.begin_step()
    assert passes.of_step() == 3.0


def test_either_all_passes_of_a_step_have_a_weight_or_none() -> None:
    weight = GradientWeight(None)
    weight.begin_pass()
    with pytest.raises(UsageError, match="had no weight"):
        weight.change(2.0)
    weight.begin_step()
    weight.change(2.0)
    weight.begin_pass()
    with pytest.raises(UsageError, match="had a weight"):
        weight.change(None)
    weight.change(3.0)
    weight.begin_pass()
    assert weight.of_step() == 5.0


def test_weights_whose_sum_overflows_are_refused() -> None:
    weight = GradientWeight(1e308)
    weight.begin_pass()
    with pytest.raises(UsageError, match="finite"):
        weight.begin_pass()
