"""Which fragment is exchanged when, and how parameters are divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod._train.outer_schedule import OuterSchedule, divide_into_fragments
from horovod.errors import UsageError


@given(st.integers(1, 40), st.data())
def test_each_fragment_has_one_exchange_in_each_period(every: int, data: st.DataObject) -> None:
    fragments = data.draw(st.integers(1, every))
    delay = data.draw(st.integers(0, every - 1))
    schedule = OuterSchedule(every, fragments, delay)
    started = [schedule.starting_after(step) for step in range(1, every + 1)]
    assert sorted(each for each in started if each is not None) == list(range(fragments))
    assert started[-1] == fragments - 1
    firsts = [schedule.first_start(fragment) for fragment in range(fragments)]
    assert [started[first - 1] for first in firsts] == list(range(fragments))
    later = [schedule.starting_after(step) for step in range(every + 1, 2 * every + 1)]
    assert later == started
    ended = [schedule.ending_after(step) for step in range(1, every + delay + 1)]
    assert ended == [None] * delay + started


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.data())
def test_fragments_hold_all_parameters_in_order(sizes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(sizes)))
    parts = divide_into_fragments(sizes, count)
    assert len(parts) == count
    assert all(parts)
    assert [index for part in parts for index in part] == list(range(len(sizes)))


def test_fragments_have_about_the_same_size() -> None:
    assert divide_into_fragments([4, 4, 4, 4, 8, 8], 4) == [[0, 1], [2, 3], [4], [5]]
    assert divide_into_fragments([100, 1, 1], 2) == [[0], [1, 2]]
    assert divide_into_fragments([1, 1, 100], 2) == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0,), "every=0 must be at least 1"),
        ((4, 0), "fragments=0 must be at least 1"),
        ((4, 5), "at most every=4"),
        ((4, 1, 4), "delay=4 must be at least 0 and below every=4"),
        ((4, 1, -1), "delay=-1"),
    ],
)
def test_other_numbers_are_refused(numbers: tuple[int, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        OuterSchedule(*numbers)


def test_more_fragments_than_parameters_are_refused() -> None:
    with pytest.raises(UsageError, match=r"fragments=3, but the optimizer trains 2 parameters"):
        divide_into_fragments([1, 2], 3)
