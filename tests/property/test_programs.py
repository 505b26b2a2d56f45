"""Whatever the ranks do, each result is that of NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operations import Operation, Outcome, Started, check
from profiles import examples
from strategies import SETTINGS, SIZES, Phase, Program, Settings, operations, programs

if TYPE_CHECKING:
    from worlds import Worlds

    from horovod._rank.group import Group


@pytest.mark.slow
@examples()
@given(SIZES.flatmap(lambda size: st.tuples(st.just(size), operations(size, large=True))), SETTINGS)
def test_an_operation(
    worlds: Worlds, size_and_operation: tuple[int, Operation], settings: Settings
) -> None:
    size, operation = size_and_operation
    ranks = worlds.get(size, settings)

    def body(rank: int) -> tuple[Outcome, ...]:
        # The first announces the name, the second its number.
        return tuple(Started(operation, ranks.groups[rank], "x").finish() for _ in range(2))

    for rank, outcomes in enumerate(ranks.run(body)):
        for outcome in outcomes:
            check(operation, rank, outcome, size)


@pytest.mark.slow
@examples()
@given(programs())
def test_operations_in_flight_in_several_process_sets(worlds: Worlds, program: Program) -> None:
    ranks = worlds.get(program.size, program.settings)

    def body(rank: int) -> list[dict[int, Outcome]]:
        world = ranks.groups[rank]
        groups = [world, *(world.add(members) for members in program.sets[1:])]
        outcomes = [_run_phase(phase, rank, groups) for phase in program.phases]
        for group in reversed(groups[1:]):
            world.remove(group)
        return outcomes

    everyones = ranks.run(body)
    for rank, phases in enumerate(everyones):
        for phase, outcomes in zip(program.phases, phases, strict=True):
            for index, outcome in outcomes.items():
                call = phase.calls[index]
                members = program.sets[call.of_set]
                check(call.operation, members.index(rank), outcome, len(members))


def _run_phase(phase: Phase, rank: int, groups: list[Group]) -> dict[int, Outcome]:
    started = {}
    for index in phase.submitted[rank]:
        call = phase.calls[index]
        group = groups[call.of_set]
        if group.is_member:
            # The same names in each phase and set, so that they are known, with something else.
            started[index] = Started(call.operation, group, f"{index}")
    return {index: started[index].finish() for index in phase.awaited[rank] if index in started}
