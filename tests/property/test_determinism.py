"""The deterministic mode: results depend on nothing but the inputs, to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from arrays import FLOATS, Array
from hypothesis import given
from hypothesis import strategies as st
from operations import Operation, Started
from profiles import examples
from strategies import Settings, operations

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn
    from worlds import Worlds

_THRESHOLDS = (0, 5000, 200_000, 64 << 20)


@dataclass(frozen=True)
class Run:
    """One way to submit the same operations.

    Attributes:
        fusion_threshold: of the engines.
        submitted: for each rank, the operations in the order of its submissions.
        pauses: for each rank, after how many submissions it waits for what is in flight.
    """

    fusion_threshold: int
    submitted: tuple[tuple[int, ...], ...]
    pauses: int


@st.composite
def _runs(draw: DrawFn, size: int, num_operations: int) -> Run:
    orders = tuple(tuple(draw(st.permutations(range(num_operations)))) for _ in range(size))
    # A pause in the middle makes other operations travel together; all ranks must pause alike.
    pauses = draw(st.integers(1, num_operations))
    if draw(st.booleans()):
        return Run(draw(st.sampled_from(_THRESHOLDS)), orders, num_operations)
    return Run(draw(st.sampled_from(_THRESHOLDS)), (orders[0],) * size, pauses)


@dataclass(frozen=True)
class Rerun:
    """Operations whose results must be the same in all runs."""

    size: int
    operations: tuple[Operation, ...]
    runs: tuple[Run, ...]


@st.composite
def reruns(draw: DrawFn) -> Rerun:
    """Reductions of floating-point numbers with results that would show another order."""
    size = draw(st.integers(2, 5))
    reductions = operations(size, ("allreduce", "reducescatter"), FLOATS)
    drawn = tuple(
        replace(each, named=True, flavour="any")
        for each in draw(st.lists(reductions, min_size=2, max_size=8))
    )
    runs = tuple(draw(_runs(size, len(drawn))) for _ in range(3))
    return Rerun(size, drawn, runs)


@pytest.mark.slow
@examples()
@given(reruns())
def test_results_do_not_depend_on_the_order_of_submissions(worlds: Worlds, rerun: Rerun) -> None:
    results = [_results_of(worlds, rerun, run) for run in rerun.runs]
    for index, operation in enumerate(rerun.operations):
        everyones = [[mine[index] for mine in ranks] for ranks in results]
        for number, ranks in enumerate(everyones):
            assert ranks == everyones[0], f"run {number} of {operation} has other bits"
            if operation.kind == "allreduce":
                assert len(set(ranks)) == 1, f"the ranks differ in run {number} of {operation}"


def _results_of(worlds: Worlds, rerun: Rerun, run: Run) -> list[dict[int, bytes]]:
    settings = Settings(fusion_threshold=run.fusion_threshold, deterministic=True)
    ranks = worlds.get(rerun.size, settings)

    def body(rank: int) -> dict[int, bytes]:
        results: dict[int, bytes] = {}
        order = run.submitted[rank]
        for first in range(0, len(order), run.pauses):
            chosen = order[first : first + run.pauses]
            started = {
                index: Started(rerun.operations[index], ranks.groups[rank], f"{index}")
                for index in chosen
            }
            for index, each in started.items():
                results[index] = _bits(each.finish().results)
        return results

    return ranks.run(body)


def _bits(results: Any) -> bytes:
    arrays: list[Array] = list(results)
    return b"".join(array.tobytes() for array in arrays)
