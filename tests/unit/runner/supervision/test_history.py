"""Histories look like tuples, whichever of them grew from which."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horovod.runner.supervision.history import History


@given(st.lists(st.tuples(st.integers(0, 20), st.integers()), max_size=20))
def test_a_history_never_changes(steps: list[tuple[int, int]]) -> None:
    """Each step continues one of the histories so far, an old one or the newest."""
    histories = [(History[int](), ())]
    for which, item in steps:
        history, expected = histories[which % len(histories)]
        histories.append((history.then(item), (*expected, item)))
    for history, expected in histories:
        assert tuple(history) == expected
        assert len(history) == len(expected)
        assert history[-2:] == list(expected[-2:])
        assert history == History(expected)


def test_items_by_number() -> None:
    short = History("ab")
    short.then("c")
    assert (short[0], short[-1]) == ("a", "b")
    assert "c" not in short
    assert list(reversed(short)) == ["b", "a"]
