"""Threads of one rank that submit side by side get what one thread gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from busy_threads import run_threads
from hypothesis import given, settings
from hypothesis import strategies as st
from operations import Outcome, Started, check
from profiles import examples
from strategies import Phase, Program, programs

if TYPE_CHECKING:
    from worlds import Worlds

    from horovod._rank.group import Group


@settings(examples(), max_examples=examples().max_examples // 8)
@given(programs(), st.integers(2, 4))
def test_operations_of_several_threads(worlds: Worlds, program: Program, num_threads: int) -> None:
    ranks = worlds.get(program.size, program.settings)

    def body(rank: int) -> list[dict[int, Outcome]]:
        world = ranks.groups[rank]
        groups = [world, *(world.add(members) for members in program.sets[1:])]
        outcomes = [_run_phase(phase, rank, groups, num_threads) for phase in program.phases]
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


def _run_phase(
    phase: Phase, rank: int, groups: list[Group], num_threads: int
) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = {}

    def run(thread: int) -> None:
        mine = {
            index
            for index in phase.submitted[rank]
            if _thread_of(phase, index) % num_threads == thread
        }
        started = {}
        for index in phase.submitted[rank]:
            call = phase.calls[index]
            group = groups[call.of_set]
            if index in mine and group.is_member:
                started[index] = Started(call.operation, group, f"{index}")
        for index in phase.awaited[rank]:
            if index in started:
                outcomes[index] = started[index].finish()

    run_threads(num_threads, run)
    return outcomes


def _thread_of(phase: Phase, index: int) -> int:
    """Operations without a name are told apart by their order in the set: one thread has them."""
    call = phase.calls[index]
    return index if call.operation.named else call.of_set
