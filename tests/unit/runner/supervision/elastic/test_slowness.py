"""What becomes of workers of an elastic job that make the others wait. No processes."""

from __future__ import annotations

from typing import Any

import pytest
from elastic_world import World

from horovod.runner.supervision import commands, events
from horovod.runner.supervision.elastic.rules import Rules


def started(mode: str, slots: dict[str, int], **rules: Any) -> World:
    """A job of three ranks that runs."""
    world = World(Rules(**{"np": 3, "min_np": 2, "max_np": 3, "slow_worker": mode, **rules}))
    world.discover(**slots)
    world.run()
    assert world.size == 3, world.reasons
    return world


def identities(world: World) -> set[str]:
    return {each.worker.identity for each in world.memberships[-1].members}


def started_on(world: World) -> list[tuple[str, int]]:
    return [(each.host, each.slot) for each in world.done if isinstance(each, commands.StartWorker)]


# -- remove


def test_a_removed_worker_leaves_in_one_change_and_has_not_failed() -> None:
    world = started("remove", {"red": 3})
    world.slow(1)
    world.slow(1)  # until it is gone, it is still slow
    world.run()
    assert identities(world) == {"red-0", "red-2"}
    assert len(world.memberships) == 2
    assert (
        world.lines[0]
        == "generation 1, 3 -> 2 ranks: rank 1 (red-1) leaves: the others wait for it"
    )
    assert "red-1" in world.ended
    assert world.state.facts.job.num_failures == 0
    world.run(60.0)
    assert world.size == 2  # nobody comes in its place
    world.finish()
    assert "1 slow worker left" in world.lines[-1]


def test_a_slot_whose_worker_was_slow_gets_another_one_after_its_rest() -> None:
    world = started("remove", {"red": 3}, cooldown_range=(10, 100))
    world.slow(1)
    world.run(9.0)
    assert world.size == 2
    world.run(12.0)
    world.run(1.0)
    assert identities(world) == {"red-0", "red-2", "red-3"}
    world.slow(3)
    world.run(19.0)  # the second rest is twice as long
    assert world.size == 2
    world.run(13.0)
    world.run(1.0)
    assert world.size == 3


def test_a_job_never_removes_below_its_minimum() -> None:
    world = started("remove", {"red": 3}, min_np=3)
    world.slow(1)
    world.slow(1)
    world.run()
    assert len(world.memberships) == 1
    assert world.lines == ["rank 1 (red-1) is slow, but stays: the job needs 3 ranks (--min-np)"]


def test_a_worker_that_costs_less_than_it_does_is_not_removed() -> None:
    world = started("remove", {"red": 3})
    world.slow(1, gain=0.3)
    world.run()
    assert world.lines == [
        "rank 1 (red-1) is slow, but stays: 2 ranks would do less than 3 with it"
    ]
    world.slow(1, gain=0.4)
    world.run()
    assert world.size == 2


def test_a_slow_place_is_better_than_none() -> None:
    world = started("remove", {"red": 2, "blue": 1}, spare_neighbors=True)
    world.slow(1)
    world.run()
    assert identities(world) == {"red-0", "blue-2"}
    world.exit(2, 1)
    world.run()
    world.run()
    assert identities(world) == {"red-0", "red-3"}


def test_one_worker_goes_at_a_time() -> None:
    world = started("remove", {"red": 3}, min_np=1)
    world.slow(1)
    world.slow(2)
    world.run()
    assert identities(world) == {"red-0", "red-2"}


# -- replace


def test_a_slow_worker_goes_in_the_change_in_which_another_one_comes() -> None:
    world = started("replace", {"red": 3, "blue": 1})
    world.slow(1)
    assert world.agents["blue"] == "starting"
    world.find("blue")
    world.wait(100.0)
    assert world.size == 3
    assert len(world.memberships) == 1  # as long as the new one loads
    world.ready(3)
    world.run()
    assert len(world.memberships) == 2
    assert identities(world) == {"red-0", "red-2", "blue-3"}
    assert world.lines[0] == (
        "generation 1, 3 -> 3 ranks: rank 1 (red-1) leaves: the others wait for it; blue-3 joins"
    )
    assert "red-1" in world.ended
    world.run(60.0)
    assert not [place for place in started_on(world)[3:] if place != ("blue", 0)]


def test_another_slot_of_the_same_host_is_taken_if_others_there_are_fast() -> None:
    world = started("replace", {"red": 4})
    world.slow(1)
    world.run()
    world.run()
    assert identities(world) == {"red-0", "red-2", "red-3"}
    assert started_on(world)[-1] == ("red", 3)


def test_other_hosts_are_better_than_another_slot() -> None:
    world = started("replace", {"red": 4, "blue": 1})
    world.slow(1)
    world.run()
    world.run()
    assert identities(world) == {"red-0", "red-2", "blue-3"}


def test_a_host_whose_only_worker_is_slow_gets_no_other_one() -> None:
    world = started("replace", {"red": 2, "blue": 3})
    world.slow(2)
    world.run()
    world.run()
    assert len(world.memberships) == 1
    assert world.lines == [
        "rank 2 (blue-2) is slow, but stays: there is no free slot for another worker "
        "(--slow-worker replace)"
    ]
    world.discover(red=2, blue=3, green=1)
    world.slow(2)
    world.run()
    world.run()
    assert world.hosts == ["red", "red", "green"]
    world.exit(3, 1)  # now the other slots of blue are not used either
    world.run()
    assert world.hosts == ["red", "red"]


def test_a_slow_worker_stays_if_the_one_in_its_place_fails() -> None:
    world = started("replace", {"red": 3, "blue": 1})
    world.slow(1)
    world.find("blue")
    world.exit(3, 1)
    world.run()
    assert len(world.memberships) == 1
    assert "rank 1 (red-1) is slow, but stays: there is no free slot" in world.lines[-1]
    world.slow(1)
    world.run(60.0)
    assert len(world.memberships) == 1
    assert sum("is slow, but stays" in line for line in world.lines) == 1


def test_a_loss_in_the_meantime_keeps_the_slow_worker() -> None:
    world = started("replace", {"red": 3, "blue": 1}, spare_neighbors=True)
    world.slow(1)
    world.find("blue")
    world.exit(2, 1)
    world.reset(0)
    world.reset(1)
    world.wait(0.5)
    assert identities(world) == {"red-0", "red-1"}
    world.run()
    world.run(10.0)
    assert identities(world) == {"red-0", "blue-3"}


# -- both


@pytest.mark.parametrize("mode", ["off", "report"])
def test_without_being_asked_to_the_job_does_nothing(mode: str) -> None:
    world = started(mode, {"red": 3, "blue": 1})
    assert world.slow(1) == []
    assert "blue" not in world.agents


@pytest.mark.parametrize("mode", ["remove", "replace"])
def test_the_reset_limit_is_not_used_up_for_slow_workers(mode: str) -> None:
    world = started(mode, {"red": 3, "blue": 1}, reset_limit=0)
    world.slow(1)
    world.run()
    assert world.verdict is None
    assert "--reset-limit 0 allows no further change" in world.lines[-1]


@pytest.mark.parametrize("mode", ["remove", "replace"])
def test_a_worker_that_is_no_member_is_left_alone(mode: str) -> None:
    world = started(mode, {"red": 3, "blue": 1})
    world.feed(events.WorkerSlow(world.now_s, "red-77", 0.5, "the others wait for it"))
    world.exit(1, 1)
    assert world.slow(0) == []  # the generation is broken
