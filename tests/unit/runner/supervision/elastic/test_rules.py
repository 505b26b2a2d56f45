"""What a user may ask of an elastic job."""

from __future__ import annotations

from typing import Any

import pytest

from horovod.errors import UsageError
from horovod.runner.supervision.elastic.rules import Rules


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"np": 0}, "at least one rank"),
        ({"np": 2, "min_np": 3}, "--min-np 3 is not between 1 and -np 2"),
        ({"np": 2, "max_np": 1}, "--max-np 1 is less than --min-np 2"),
        ({"np": 2, "cooldown_range": (0.5, 10.0)}, "from 1 to 3600"),
        ({"np": 2, "cooldown_range": (10.0, 5.0)}, "two ascending numbers"),
        ({"np": 2, "cooldown_range": (10.0, 5000.0)}, "from 1 to 3600"),
        ({"np": 2, "missed_polls": 0}, "missing in 0 answers"),
    ],
)
def test_rules_that_contradict_one_another_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Rules(**wrong)


def test_the_least_size_is_np_unless_it_is_given() -> None:
    assert Rules(np=3).min_np == 3
    assert Rules(np=3, min_np=1).min_np == 1


def test_the_start_waits_for_no_more_slots_than_there_may_be_ranks() -> None:
    assert Rules(np=4).gate == 4
    assert Rules(np=4, min_np=2, max_np=3).gate == 3
