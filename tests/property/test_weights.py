"""Weighted averages: what has no weight is never read into them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operations import Operation, Outcome, Started, check
from profiles import examples
from strategies import SETTINGS, Settings, weighted_averages

if TYPE_CHECKING:
    from worlds import Worlds

_SIZES = st.integers(2, 5)


@pytest.mark.slow
@examples()
@given(
    _SIZES.flatmap(lambda size: st.tuples(st.just(size), weighted_averages(size, most=4))), SETTINGS
)
def test_what_has_no_weight_contributes_nothing(
    worlds: Worlds, size_and_operations: tuple[int, tuple[Operation, ...]], settings: Settings
) -> None:
    size, drawn = size_and_operations
    ranks = worlds.get(size, settings)

    def body(rank: int) -> list[Outcome]:
        # In flight together, so that those that are alike are fused.
        started = [
            Started(operation, ranks.groups[rank], f"w{index}")
            for index, operation in enumerate(drawn)
        ]
        return [each.finish() for each in started]

    for rank, outcomes in enumerate(ranks.run(body)):
        for operation, outcome in zip(drawn, outcomes, strict=True):
            check(operation, rank, outcome, size)


@pytest.mark.slow
@examples()
@given(_SIZES.flatmap(lambda size: st.tuples(st.just(size), weighted_averages(size, most=1))))
def test_other_values_without_weight_give_the_same_bits(
    worlds: Worlds, size_and_operations: tuple[int, tuple[Operation, ...]]
) -> None:
    size, (operation,) = size_and_operations
    ranks = worlds.get(size, Settings(deterministic=True))

    def body(rank: int) -> list[Outcome]:
        assert operation.weights is not None
        others = operation if operation.weights[rank] else replace(operation, flavour="small")
        return [Started(each, ranks.groups[rank], "x").finish() for each in (operation, others)]

    for first, second in ranks.run(body):
        for one, other in zip(first.results, second.results, strict=True):
            assert one.tobytes() == other.tobytes()
