"""What a call of hvd.log sends, and the steps that it counts."""

from __future__ import annotations

import math

import pytest

from horovod._settings.destinations import Destination, parse_destinations
from horovod._train.logged.record import (
    Run,
    check_step,
    collect_values,
    decode,
    digest_of,
    encode,
)
from horovod._train.logged.steps import StepCount
from horovod.errors import StartError, UsageError

RUN = Run(1_795_676_176, 0x2C763105C6)


def sum_of(*ranks: list[float]) -> list[float]:
    return [sum(values) for values in zip(*ranks, strict=True)]


def test_weighted_sum_is_the_average_over_samples() -> None:
    total = sum_of(encode([1.0, 10.0], 3.0, 7, RUN), encode([5.0, 30.0], 1.0, 7, None))
    resolved = decode(total)
    assert resolved.averages == (2.0, 15.0)
    assert (resolved.step, resolved.run) == (7, RUN)


def test_rank_of_weight_0_may_log_anything() -> None:
    total = sum_of(encode([2.0], 1.0, 0, RUN), encode([math.nan], 0.0, 0, None))
    assert decode(total).averages == (2.0,)


def test_nan_stays_nan_and_infinity_infinite() -> None:
    total = sum_of(encode([math.nan, math.inf], None, 0, RUN), encode([1.0, 1.0], None, 0, None))
    nan, infinity = decode(total).averages
    assert math.isnan(nan)
    assert infinity == math.inf


def test_joined_rank_adds_zeros() -> None:
    """The engine lets a rank that has joined add neutral values."""
    present = encode([4.0], None, 2, None)
    resolved = decode(sum_of([0.0] * len(present), present))
    assert resolved.averages == (4.0,)
    assert resolved.step is None
    assert resolved.run is None


def test_no_weight_gives_no_average() -> None:
    assert decode(encode([4.0], 0.0, 2, RUN)).averages == ()


def test_name_of_run_sorts_by_time_and_tells_jobs_of_one_second_apart() -> None:
    other = Run(RUN.started_at, RUN.token + 1)
    assert RUN.name == "20261126-065616-2c763105c6"
    assert other.name != RUN.name
    assert decode(encode([1.0], None, 0, other)).run == other


def test_digest_tells_names_steps_and_weighting_apart() -> None:
    digests = {
        digest_of(("loss",), None, is_weighted=False),
        digest_of(("accuracy",), None, is_weighted=False),
        digest_of(("loss",), 0, is_weighted=False),
        digest_of(("loss",), None, is_weighted=True),
    }
    assert len(digests) == 4
    assert all(0 < digest < 2**31 for digest in digests)


def test_values_are_sorted_by_name() -> None:
    assert list(collect_values({"z/a": 1}, {"b": 2, "a": 3})) == ["a", "b", "z/a"]


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ({"loss": 1}, {"loss": 2}, "loss is given twice"),
        ({"step": 1}, {}, "name of an argument"),
        ({}, {}, "at least one value"),
        ({1: 1}, {}, "is no text"),
        ({"a/../b": 1}, {}, "no relative path|not a relative path"),
        ({"/a": 1}, {}, "not a relative path"),
        ({"a\n": 1}, {}, "letters, digits"),
        ({"": 1}, {}, "letters, digits"),
    ],
)
def test_names_that_no_destination_takes(values: dict, named: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        collect_values(values, named)


@pytest.mark.parametrize("step", [-1, 1.5, True, "3", 2**60])
def test_steps_that_are_none(step: object) -> None:
    with pytest.raises(UsageError, match="integer from 0 on"):
        check_step(step)


def test_call_that_repeats_a_name_begins_the_next_step() -> None:
    count = StepCount()
    steps = [count.count([name]) for name in ("loss", "accuracy", "loss", "loss", "val", "loss")]
    assert steps == [0, 0, 1, 2, 2, 3]


def test_given_steps_go_on() -> None:
    count = StepCount()
    assert count.go_to(10, ["loss"]) == 10
    assert count.count(["accuracy"]) == 10
    assert count.count(["loss"]) == 11
    assert count.go_to(11, ["more"]) == 11
    assert count.count(["loss"]) == 12


def test_newcomer_follows_rank_0() -> None:
    """It hears late of the first steps, and has counted on meanwhile."""
    count = StepCount()
    local = [count.count(["loss"]) for _ in range(3)]
    for step, of_rank_0 in zip(local, (100, 101, 102), strict=True):
        count.follow(step, of_rank_0)
    assert count.shifted(count.count(["loss"])) == 103
    assert count.shifted(count.go_to(5, ["loss"])) == 5
    assert count.shifted(count.count(["loss"])) == 6


def test_destinations() -> None:
    assert parse_destinations(" tensorboard:runs, jsonl:a/b.jsonl,mlflow:http://h:5000,wandb,") == (
        Destination("tensorboard", "runs"),
        Destination("jsonl", "a/b.jsonl"),
        Destination("mlflow", "http://h:5000"),
        Destination("wandb", ""),
    )
    assert parse_destinations("") == ()


def test_messages_hide_user_and_password() -> None:
    text = "mlflow:postgresql://ada:s3cr@t@db:5432/runs"
    (destination,) = parse_destinations(text)
    assert destination.place == "postgresql://ada:s3cr@t@db:5432/runs"
    assert str(destination) == "mlflow:postgresql://***@db:5432/runs"
    with pytest.raises(StartError) as raised:
        parse_destinations(f"{text},{text}")
    assert "s3cr" not in str(raised.value)
    assert "given twice" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorbord:runs", "'tensorbord' is none of tensorboard, jsonl"),
        ("jsonl", "jsonl needs a file behind a colon"),
        ("mlflow,mlflow", "mlflow is given twice"),
    ],
)
def test_wrong_destinations(text: str, message: str) -> None:
    with pytest.raises(StartError, match=message):
        parse_destinations(text)
