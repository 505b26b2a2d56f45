"""Which gradients horovod.tensorflow reduces in one operation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horovod._train.gradients import GROUP_BYTES, small_together

MIB = 1 << 20


def test_small_ones_go_together_and_large_ones_alone() -> None:
    assert small_together([4, 8 * MIB, 4, 0]) == ((0, 2, 3), (1,))


def test_what_is_unknown_goes_alone() -> None:
    assert small_together([4, None, 4]) == ((0, 2), (1,))


def test_a_full_group_is_followed_by_another() -> None:
    assert small_together([3 * MIB, MIB, 1, 1]) == ((0, 1), (2, 3))


@given(st.lists(st.none() | st.integers(0, 2 * GROUP_BYTES)))
def test_each_gradient_is_in_one_group(sizes: list[int | None]) -> None:
    groups = small_together(sizes)
    assert sorted(place for group in groups for place in group) == list(range(len(sizes)))
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)
    for group in groups:
        if len(group) > 1:
            assert sum(sizes[place] or 0 for place in group) <= GROUP_BYTES
            assert None not in [sizes[place] for place in group]
