"""What becomes of an elastic job whose hosts come and go. No processes."""

from __future__ import annotations

from elastic_world import World

from horovod.runner.supervision import events
from horovod.runner.supervision.elastic import events as elastic
from horovod.runner.supervision.elastic.rules import Rules


def started(rules: Rules, **slots: int) -> World:
    """A job that runs on these hosts."""
    world = World(rules)
    world.discover(**slots)
    world.run()
    assert world.size, world.reasons
    return world


# -- cool-downs


def test_a_host_comes_back_after_its_rest() -> None:
    world = started(Rules(np=4, min_np=2, cooldown_range=(10, 100)), red=2, blue=2)
    world.exit(2, 1)
    world.run()
    assert world.hosts == ["red", "red"]
    world.run(8.0)
    assert world.size == 2
    world.run(12.0)
    world.run(12.0)
    assert world.hosts == ["red", "red", "blue", "blue"]
    assert world.memberships[-1].members[0].since == 0


def test_a_failing_host_comes_back_when_it_is_needed() -> None:
    world = started(Rules(np=4, cooldown_range=(1, 2)), red=2, blue=2)
    world.exit(2, 1)
    world.run(5.0)
    world.run(5.0)
    assert world.hosts == ["red", "red", "blue", "blue"]
    fresh = {each.worker.identity for each in world.memberships[-1].members}
    assert "blue-2" not in fresh
    assert "blue-3" in fresh  # without it there would have been too few
    assert "blue-4" in fresh


def test_rests_grow_and_have_a_limit() -> None:
    rules = Rules(np=1, cooldown_range=(10, 100))
    for number, (least, most) in enumerate([(10, 20), (20, 30), (40, 50), (80, 90)], start=1):
        assert least <= rules.rest_s("red", number) <= most
    assert rules.rest_s("red", 5) == rules.rest_s("red", 500) == 100
    assert rules.rest_s("red", 2) == rules.rest_s("red", 2)


def test_a_host_that_leaves_is_not_at_fault() -> None:
    world = started(Rules(np=4, min_np=2), red=2, blue=2)
    world.exit(2, -15)
    world.exit(3, -15)
    world.discover(red=2)
    world.run()
    assert world.hosts == ["red", "red"]
    world.discover(red=2, blue=2)
    world.run(20.0)
    assert world.hosts == ["red", "red", "blue", "blue"]


def test_a_newcomer_that_fails_changes_nothing() -> None:
    world = started(Rules(np=2, max_np=4), red=2)
    world.discover(red=2, blue=2)
    world.find("blue")
    world.exit(2, 1)
    world.run(20.0)
    assert world.hosts == ["red", "red", "blue"]
    assert not any(each.told for each in world.workers.values())


# -- changes of hosts


def test_the_job_grows_once_newcomers_are_ready() -> None:
    world = started(Rules(np=2, max_np=4), red=2)
    world.discover(red=2, blue=3)
    world.find("blue")
    world.wait(60.0)
    assert len(world.memberships) == 1  # whatever it takes them to load, the others train
    world.ready(2)
    world.ready(3)
    assert world.size == 4
    assert world.lines == ["generation 1, 2 -> 4 ranks: blue-2, blue-3 join"]


def test_newcomers_join_together_if_none_is_too_late() -> None:
    world = started(Rules(np=2), red=2)
    world.discover(red=2, blue=2)
    world.find("blue")
    world.ready(2)
    world.wait(4.0)
    assert world.size == 2
    world.wait(2.0)
    assert world.size == 3
    world.all_act()
    world.wait(1.0)
    world.all_act()
    world.run(6.0)
    assert world.size == 4


def test_a_dismissed_worker_that_is_stopped_does_not_hold_up_the_others() -> None:
    world = started(Rules(np=3, min_np=1), red=2, blue=1)
    world.workers[2].stopped = True
    world.discover(red=2)
    world.wait(3600.0)
    world.feed(elastic.WorkerSilent(world.now_s, "blue-2", 60.2))
    assert world.workers[2].told
    world.run()
    assert world.hosts == ["red", "red"]
    assert {world.workers[each].stage for each in (0, 1)} == {"training"}


def test_workers_of_a_host_that_leaves_are_dismissed() -> None:
    world = started(Rules(np=4, min_np=2, grace_s=10.0), red=2, blue=2)
    world.discover(red=2)
    world.wait(1.0)
    assert world.size == 2
    dismissed = [each for each in world.done if isinstance(each, elastic.Dismiss)]
    assert [each.identity for each in dismissed] == ["blue-2", "blue-3"]
    assert dismissed[0].text == "rank 2 (blue-2) leaves: blue is no longer listed"
    world.wait(3600.0)  # until the next commit of all
    assert not any(each.told for each in world.workers.values())
    assert {each.stage for each in world.workers.values()} == {"training"}
    world.run()
    assert not world.on("blue")
    assert "blue" not in world.agents
    assert not [each for each in world.done if isinstance(each, events.EndWorker)]


def test_those_that_do_not_leave_are_ended() -> None:
    world = started(Rules(np=4, min_np=2, grace_s=10.0), red=2, blue=2)
    world.discover(red=2)
    world.wait(1.0)
    world.boundary()
    for number in (2, 3):
        world.workers[number].stopped = True
    world.run(9.0)
    assert not world.workers[2].told
    world.run(3.0)
    assert not world.on("blue")


def test_fewer_slots_take_the_highest_ones_away() -> None:
    world = started(Rules(np=4, min_np=2), red=2, blue=2)
    world.discover(red=1, blue=2)
    world.run()
    assert [each.worker.identity for each in world.memberships[-1].members] == [
        "red-0",
        "blue-2",
        "blue-3",
    ]


def test_a_spare_host_takes_over_in_one_change() -> None:
    world = started(Rules(np=4, max_np=4), red=2, blue=2, green=2)
    assert "green" not in world.agents
    world.discover(red=2, green=2)
    world.run()
    assert world.hosts == ["red", "red", "green", "green"]
    assert len(world.memberships) == 2
    assert world.memberships[1].members[0].since == 0


def test_all_hosts_can_be_exchanged() -> None:
    world = started(Rules(np=2, max_np=2), red=2)
    world.discover(blue=2)
    world.run(30.0)
    world.run(30.0)
    assert world.hosts == ["blue", "blue"]
    assert len(world.memberships) == 3
    assert world.memberships[1].members[0].worker.host == "red"  # hands over what was trained


def test_too_few_hosts_do_not_stop_those_who_train() -> None:
    world = started(Rules(np=4), red=2, blue=2)
    world.discover(red=2)
    world.run(3000.0)
    assert len(world.memberships) == 1
    assert world.verdict is None


def test_a_change_that_is_undone_changes_nothing() -> None:
    world = started(Rules(np=4, min_np=2), red=2, blue=2)
    world.discover(red=2)
    world.discover(red=2, blue=2)
    world.run(60.0)
    assert len(world.memberships) == 1


def test_a_host_may_be_missing_for_one_answer() -> None:
    world = started(Rules(np=4, min_np=2, missed_polls=2), red=2, blue=2)
    world.discover(red=2)
    world.run(60.0)
    assert world.size == 4
    world.discover(red=2)
    world.run()
    assert world.size == 2


def test_slots_that_come_back_do_not_lead() -> None:
    world = started(Rules(np=4, min_np=2), red=2, blue=2)
    world.discover(red=0, blue=2)
    world.run()
    assert world.hosts == ["blue", "blue"]
    world.discover(red=2, blue=2)
    world.run(20.0)
    assert world.hosts == ["blue", "blue", "red", "red"]


def test_a_removal_and_an_addition_at_once() -> None:
    world = started(Rules(np=4, min_np=2), red=2, blue=2)
    world.discover(red=2, green=2)
    world.run(20.0)
    assert world.hosts == ["red", "red", "green", "green"]
    assert len(world.memberships) in (2, 3)


def test_one_plan_at_a_time() -> None:
    world = started(Rules(np=2), red=2)
    world.discover(red=2, blue=1)
    world.find("blue")
    world.ready(2)
    assert world.size == 3
    world.discover(red=2, blue=1, green=1)
    world.find("green")
    world.ready(3)
    world.wait(3000.0)
    assert world.size == 3  # nobody has reached a commit yet
    world.run(20.0)
    assert world.size == 4


def test_a_newcomer_that_dies_before_the_next_commit_disturbs_nobody() -> None:
    world = started(Rules(np=2), red=2)
    world.discover(red=2, blue=1)
    world.find("blue")
    world.ready(2)
    assert world.size == 3
    world.exit(2, -9)
    world.wait(1.0)
    assert world.size == 2
    assert len(world.memberships) == 3
    world.run()
    assert all(each.trained == 2 for each in world.workers.values())


def test_workers_that_never_say_that_they_run_are_taken_to() -> None:
    world = World(Rules(np=2), says_running=False)
    world.discover(red=2)
    world.run()
    world.discover(red=2, blue=1)
    world.run()
    assert world.size == 2
    world.run(10.0)
    assert world.size == 3


# -- polite leaves


def test_a_worker_that_wants_to_leave_is_no_failure() -> None:
    world = started(Rules(np=3, min_np=2), red=3)
    world.leaving(1)
    world.run()
    assert len(world.memberships[1].members) == 2
    assert world.lines[0] == "generation 1, 3 -> 2 ranks: rank 1 (red-1) leaves: SIGTERM"
    world.run(20.0)
    assert world.size == 3  # its slot is free again
    assert "failure" not in " ".join(world.lines)


def test_it_may_leave_at_once() -> None:
    world = started(Rules(np=3, min_np=2), red=3)
    world.leaving(1)
    world.leave(1)
    world.exit(1, 143)
    world.run()
    assert [each.worker.identity for each in world.memberships[1].members] == [
        "red-0",
        "red-3",
        "red-2",
    ]
    assert "failure" not in " ".join(world.lines)


def test_a_host_whose_agent_is_told_to_end_is_leaving() -> None:
    world = started(Rules(np=4, min_np=2), red=2, blue=2)
    world.feed(events.HostStopping(world.now_s, "blue", "it received SIGTERM", 15))
    world.exit(2, -15)
    world.exit(3, -15)
    world.run()
    assert world.hosts == ["red", "red"]
    assert "blue is leaving anyway" in world.lines[1]


def test_the_only_worker_that_knows_what_was_trained_hands_it_over_first() -> None:
    world = started(Rules(np=1), red=1)
    world.discover(red=1, blue=1)
    world.find("blue")
    world.ready(1)
    assert world.size == 2
    world.boundary()  # on its way to the new generation, which nobody has reached
    world.leaving(0)
    world.reset(1)
    world.reset(0)
    world.wait(1.0)
    assert [each.worker.identity for each in world.memberships[-1].members] == ["red-0", "blue-1"]
    world.run(1.0)
    assert "red-0" in world.ended
    assert world.memberships[-1].hosts[0] == "blue"


# -- hosts that come and go, and what is said of them


def starts(world: World, host: str) -> int:
    """How many workers were started on a host."""
    return sum(isinstance(each, elastic.StartOn) and each.host == host for each in world.done)


def test_a_host_that_flips_gets_workers_once_it_stays() -> None:
    world = started(Rules(np=1, max_np=4), red=1)
    for _ in range(40):
        world.discover(red=1, blue=1)
        world.run(1.0)
        world.discover(red=1)
        world.run(1.0)
    assert starts(world, "blue") <= 3
    told = [line for line in world.lines if line.startswith("blue comes and goes")]
    assert told[0] == (
        "blue comes and goes: after 2 returns it gets workers once it has been listed for 4 s"
    )
    assert len(told) <= 6
    for _ in range(70):
        world.discover(red=1, blue=1)
        world.run(1.0)
    assert world.hosts == ["red", "blue"]


def test_a_job_starts_with_the_hosts_that_stay() -> None:
    world = World(Rules(np=2, min_np=1))
    for _ in range(4):
        world.discover(red=1, blue=1)
        world.discover(red=1)
        world.all_act()
        world.wait(1.0)
    assert world.hosts == ["red"]


def test_a_host_that_comes_back_once_is_used_at_once() -> None:
    world = started(Rules(np=1, max_np=4), red=1, blue=1)
    world.discover(red=1)
    world.run()
    world.discover(red=1, blue=1)
    world.run(6.0)
    assert world.hosts == ["red", "blue"]


def test_a_loss_is_one_line_whatever_is_said_of_it() -> None:
    world = started(Rules(np=2, min_np=1), red=1, blue=1)
    world.lose_host("blue", "it ended; it wrote:\n    Traceback\n    " + "x" * 100_000)
    world.run()
    assert not any("\n" in line or len(line) > 2000 for line in world.lines)
    assert world.lines[0].startswith("blue is lost with rank 1 (blue-1): it ended; it wrote: Trace")
