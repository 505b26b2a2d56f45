"""Ranks that run out of data at any point change no result of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from operations import Outcome, Started, await_end, check
from profiles import examples
from strategies import Joining, joinings

if TYPE_CHECKING:
    from worlds import Worlds

    from horovod._rank.group import Group


@pytest.mark.slow
@examples()
@given(joinings())
def test_ranks_that_join_early(worlds: Worlds, joining: Joining) -> None:
    ranks = worlds.get(joining.size, joining.settings)

    def body(rank: int) -> list[tuple[list[list[Outcome]], int]]:
        world = ranks.groups[rank]
        group = world if len(joining.ranks) == world.size else world.add(joining.ranks)
        rounds = [_run_round(joining, group, which) for which in range(len(joining.num_steps))]
        if group is not world:
            world.remove(group)
        return rounds

    everyones = ranks.run(body)
    members = [everyones[rank] for rank in joining.ranks]
    for which, num_steps in enumerate(joining.num_steps):
        for set_rank, rounds in enumerate(members):
            _check_round(joining, num_steps, set_rank, rounds[which][0])
        (last,) = {rounds[which][1] for rounds in members}
        # The others could not go on without those that had joined.
        assert num_steps[joining.ranks.index(last)] == max(num_steps)


def _run_round(joining: Joining, group: Group, which: int) -> tuple[list[list[Outcome]], int]:
    if not group.is_member:
        return [], -1
    outcomes = []
    for step in joining.steps[: joining.num_steps[which][group.rank]]:
        started = [Started(each, group, f"{index}") for index, each in enumerate(step)]
        outcomes.append([each.finish() for each in started])
    handle = group.join(divide_by_initial_world_size=joining.divides_by_size)
    await_end(handle, "join()")
    return outcomes, handle.last_joined()


def _check_round(
    joining: Joining, num_steps: tuple[int, ...], set_rank: int, outcomes: list[list[Outcome]]
) -> None:
    size = len(joining.ranks)
    assert len(outcomes) == num_steps[set_rank]
    for number, (step, ended) in enumerate(zip(joining.steps, outcomes, strict=False)):
        present = [rank for rank in range(size) if num_steps[rank] > number]
        num_averaged = size if joining.divides_by_size else len(present)
        for operation, outcome in zip(step, ended, strict=True):
            check(operation, set_rank, outcome, size, present, num_averaged)
