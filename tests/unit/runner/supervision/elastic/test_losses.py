"""How an elastic job starts, and what becomes of it when workers are lost. No processes."""

from __future__ import annotations

import signal

import pytest
from elastic_world import World

from horovod.runner.protocol.frames import Stop
from horovod.runner.supervision import commands, events
from horovod.runner.supervision.elastic.rules import Rules


def started(rules: Rules, **slots: int) -> World:
    """A job that runs on these hosts."""
    world = World(rules)
    world.discover(**slots)
    world.run()
    assert world.size, world.reasons
    return world


# -- the start


def test_the_job_starts_as_soon_as_there_are_enough_slots() -> None:
    world = World(Rules(np=3, min_np=2, max_np=4))
    world.discover(red=2)
    assert world.lines == [
        "2 of the 3 slots are there that the job needs: waiting up to 600 s for more; "
        "discovery lists red:2"
    ]
    assert not world.agents
    used = world.discover(red=2, blue=3, green=9)
    assert used == [commands.UseHost("red", 2), commands.UseHost("blue", 3)]
    world.run()
    assert world.hosts == ["red", "red", "blue", "blue"]
    assert "green" not in world.agents


def test_too_few_slots_end_the_job_after_the_elastic_timeout() -> None:
    world = World(Rules(np=3, elastic_timeout_s=20.0))
    world.discover(red=2)
    world.wait(19.0)
    assert world.verdict is None
    world.wait(2.0)
    assert world.verdict is not None
    assert world.verdict.exit_code == 1
    assert world.verdict.message == (
        "only 2 of the 3 slots are there that the job needs after 20 s; discovery lists red:2; "
        "see --min-np and --elastic-timeout"
    )


def test_no_hosts_at_all_end_the_job_as_well() -> None:
    world = World(Rules(np=1, elastic_timeout_s=20.0))
    world.discover()
    world.wait(21.0)
    assert world.verdict is not None
    assert "discovery lists no host" in world.verdict.message


def test_fixed_hosts_that_are_too_few_end_the_job_at_once() -> None:
    world = World(Rules(np=3, fixed_hosts=True))
    world.discover(red=2)
    assert world.verdict is not None
    assert "no other host can come" in world.verdict.message


def test_one_slow_host_does_not_hold_up_the_others_for_ever() -> None:
    world = World(Rules(np=2, max_np=4))
    world.discover(red=2, blue=2)
    world.find("red")
    for number in world.on("red"):
        world.ready(number)
    assert not world.memberships
    world.wait(11.0)
    assert world.hosts == ["red", "red"]
    world.run(20.0)
    assert world.hosts == ["red", "red", "blue", "blue"]


def test_the_first_discovery_must_not_fail() -> None:
    world = World(Rules(np=1))
    world.feed(events.DiscoveryFailed(1.0, "exit code 3", first=True))
    assert world.verdict is not None
    assert world.verdict.message == "cannot find out which hosts there are: exit code 3"


def test_a_later_one_may_and_is_told_once() -> None:
    world = started(Rules(np=1), red=1)
    for _ in range(3):
        world.feed(events.DiscoveryFailed(world.now_s, "exit code 3", first=False))
    assert world.lines == ["cannot find out which hosts there are, they stay: exit code 3"]
    assert world.verdict is None
    world.discover(red=1)
    world.feed(events.DiscoveryFailed(world.now_s, "exit code 3", first=False))
    assert len(world.lines) == 2


@pytest.mark.parametrize("code", [1, 127])
def test_workers_that_all_fail_at_the_start_end_the_job(code: int) -> None:
    world = World(Rules(np=2, cooldown_range=(1, 2)))
    world.discover(red=2)
    world.find("red")
    world.exit(0, code)
    world.exit(1, code)
    assert world.verdict is not None
    assert world.verdict.exit_code == code
    assert world.verdict.message == f"worker red-0 on red exited with code {code}"


def test_a_command_that_never_joins_is_a_success() -> None:
    world = World(Rules(np=2))
    world.discover(red=2)
    world.find("red")
    world.exit(0, 0)
    assert world.verdict is None
    world.exit(1, 0)
    assert world.verdict is not None
    assert world.verdict.exit_code == 0
    assert len([each for each in world.done if isinstance(each, commands.StartWorker)]) == 2


def test_the_rest_starts_without_a_host_that_fails_first() -> None:
    world = World(Rules(np=4, min_np=2))
    world.discover(red=2, blue=2)
    world.find("red")
    world.find("blue")
    world.exit(0, 1)
    world.run()
    assert world.hosts == ["blue", "blue"]


# -- losses


def test_survivors_go_on_without_a_worker_that_was_killed() -> None:
    world = started(Rules(np=3, min_np=2), red=3)
    world.exit(1, -signal.SIGKILL)
    assert len(world.memberships) == 1
    world.run()
    assert [each.worker.identity for each in world.memberships[1].members] == ["red-0", "red-2"]
    assert world.lines[0].startswith("rank 1 on red was killed by SIGKILL")
    assert world.lines[0].endswith("red gets no new workers")
    assert world.lines[1].startswith("generation 1, 3 -> 2 ranks: rank 1 on red was killed by")
    assert world.lines[2].startswith("generation 1 runs: training stood still for 0.25 s")
    assert not any(line in reason for line in world.lines for reason in world.reasons)


def test_the_host_of_a_failure_is_left_if_others_suffice() -> None:
    world = started(Rules(np=4, min_np=2), red=2, blue=2)
    world.exit(0, 1)
    world.run()
    assert world.hosts == ["blue", "blue"]
    assert not world.on("red")
    assert "red" not in world.agents


def test_its_other_workers_may_be_spared() -> None:
    world = started(Rules(np=4, min_np=2, spare_neighbors=True), red=2, blue=2)
    world.exit(0, 1)
    world.run()
    assert world.hosts == ["red", "blue", "blue"]


def test_a_lost_host_is_one_change() -> None:
    world = started(Rules(np=4, min_np=2), red=2, blue=2)
    world.lose_host("blue")
    world.run()
    assert world.hosts == ["red", "red"]
    assert len(world.memberships) == 2
    assert world.lines[0] == (
        "blue is lost with rank 2 (blue-2), rank 3 (blue-3): it ended; blue gets no new workers"
    )


def test_a_plan_waits_for_all_survivors_to_give_up() -> None:
    world = started(Rules(np=3, min_np=1), red=3)
    world.gone(2)
    world.reset(0)
    world.wait(5.0)
    assert len(world.memberships) == 1
    world.reset(1)
    assert len(world.memberships) == 2
    assert world.size == 2


def test_a_reset_without_a_loss_connects_the_same_workers_anew() -> None:
    world = started(Rules(np=2), red=2)
    world.workers[0].stage = "broken"
    world.run()
    assert world.size == 2
    assert world.lines[0] == (
        "generation 1, 2 -> 2 ranks: rank 0 (red-0) gave up generation 0 (rank 1 was lost)"
    )


def test_a_silent_worker_is_killed_at_once_and_left_out() -> None:
    world = started(Rules(np=3, min_np=2, cooldown_range=(5, 5)), red=3)
    world.workers[1].stopped = True
    done = world.feed(events.WorkerSilent(world.now_s, "red-1", 60.2))
    assert commands.EndWorker(1, Stop(signal.SIGKILL, 0.0)) in done
    assert world.lines == [
        "rank 1 (red-1) on red is killed: it has been silent for 60.2 s (--worker-timeout) in "
        "generation 0; red gets no new workers for 5.0 s"
    ]
    world.run()
    assert [each.worker.identity for each in world.memberships[1].members] == ["red-0", "red-2"]
    assert world.state.facts.job.num_failures == 1
    world.run(6.0)
    assert world.size == 3


def test_who_still_connects_hears_of_a_loss() -> None:
    world = World(Rules(np=3, min_np=2))
    world.discover(red=3)
    world.find("red")
    for each in range(3):
        world.ready(each)
    assert world.size == 3
    world.exit(1, -signal.SIGKILL)
    assert [each for each in world.done if isinstance(each, commands.BreakUp)]
    assert {world.workers[each].stage for each in (0, 2)} == {"broken"}
    world.run()
    assert world.size == 2


@pytest.mark.parametrize("end", ["killed", "gone", "silent", "host", "gives up"])
def test_survivors_hear_of_every_loss_from_the_job(end: str) -> None:
    """Nothing else would wake them up."""
    world = World(Rules(np=3, min_np=1), loses_wakeups=True)
    world.discover(red=2, blue=1)
    world.run()
    match end:
        case "killed":
            world.exit(2, -signal.SIGKILL)
        case "gone":
            world.gone(2)
        case "silent":
            world.workers[2].stopped = True
            world.feed(events.WorkerSilent(world.now_s, "blue-2", 60.2))
        case "host":
            world.lose_host("blue")
        case "gives up":
            world.workers[2].stage = "broken"
            world.reset(2)
    (told,) = [each for each in world.done if isinstance(each, commands.TellLoss)]
    assert told.generation == 0
    assert {world.workers[each].stage for each in (0, 1)} == {"broken"}
    world.run()
    assert len(world.memberships) == 2


def test_survivors_hear_of_the_loss_of_one_that_was_to_leave() -> None:
    world = World(Rules(np=3, min_np=1), loses_wakeups=True)
    world.discover(red=2, blue=1)
    world.run()
    world.discover(red=2)
    world.wait(1.0)
    assert world.size == 2
    assert world.workers[2].stage == "training"  # until all look for changes
    world.exit(2, -signal.SIGKILL)
    assert {world.workers[each].stage for each in (0, 1)} == {"broken"}


def test_the_loss_of_a_newcomer_disturbs_nobody_who_trains() -> None:
    world = World(Rules(np=2, max_np=3, min_np=1), loses_wakeups=True)
    world.discover(red=2)
    world.run()
    world.discover(red=2, blue=1)
    world.find("blue")
    world.ready(2)
    world.exit(2, -signal.SIGKILL)
    assert {world.workers[each].stage for each in (0, 1)} == {"training"}
    assert not [each for each in world.done if isinstance(each, commands.TellLoss)]
    world.run()
    assert world.size == 2


def test_silence_that_nobody_would_outlive_is_waited_out() -> None:
    world = started(Rules(np=2, min_np=1), red=2)
    assert world.feed(events.WorkerSilent(world.now_s, "red-1", 60.2))
    assert not world.feed(events.WorkerSilent(world.now_s, "red-0", 61.0))
    assert not world.feed(events.WorkerSilent(world.now_s, "red-1", 62.0))
    assert not world.workers[0].told


def test_a_worker_that_does_not_give_up_a_generation_has_the_elastic_timeout() -> None:
    world = started(Rules(np=3, min_np=2, elastic_timeout_s=30.0), red=3)
    world.workers[1].stopped = True
    world.reset(0)
    world.reset(2)
    world.wait(29.0)
    assert len(world.memberships) == 1
    assert not world.workers[1].told
    world.wait(2.0)
    world.run()
    assert [each.worker.identity for each in world.memberships[1].members] == ["red-0", "red-2"]
    assert world.lines[0].startswith(
        "rank 1 (red-1) on red is ended: it has not given up generation 0 within 30 s"
    )


def test_nobody_is_silent_while_nobody_waits() -> None:
    world = started(Rules(np=3, min_np=1, elastic_timeout_s=30.0), red=3)
    world.exit(1, -9)
    world.wait(300.0)
    assert not any(each.told for each in world.workers.values())


def test_a_worker_whose_connection_is_gone_is_ended() -> None:
    world = started(Rules(np=2, min_np=1), red=2)
    world.gone(1)
    world.wait(3.0)
    assert world.workers[1].told
    world.run()
    assert world.size == 1


# -- below the least size


def test_survivors_wait_for_a_replacement() -> None:
    world = started(Rules(np=2), red=1, blue=1)
    world.lose_host("blue")
    world.discover(red=1)
    world.run(60.0)
    assert len(world.memberships) == 1
    assert (
        "1 of the 2 workers are there that the job needs: waiting up to 600 s for more"
        in (world.lines[1])
    )
    world.discover(red=1, green=1)
    world.run()
    assert world.hosts == ["red", "green"]
    assert world.memberships[1].members[0].since == 0


def test_they_wait_no_longer_than_the_elastic_timeout() -> None:
    world = started(Rules(np=2, elastic_timeout_s=20.0), red=1, blue=1)
    world.exit(1, 7)
    world.run(19.0)
    assert world.verdict is None
    world.run(5.0)
    assert world.verdict is not None
    assert world.verdict.exit_code == 7
    assert world.verdict.message.startswith(
        "rank 1 on blue exited with code 7; only 1 of the 2 workers are there that the job needs "
        "after 20 s; discovery lists red:1, blue:1"
    )


def test_there_is_no_wait_where_nobody_can_come() -> None:
    world = started(Rules(np=2, fixed_hosts=True), red=1, blue=1)
    world.exit(1, 7)
    world.run()
    assert world.verdict is not None
    assert "no host can come" in world.verdict.message
