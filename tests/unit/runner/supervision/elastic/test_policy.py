"""What becomes of an elastic job: one scenario after the other."""

from __future__ import annotations

import signal

import pytest
from elastic_world import World

from horovod.runner.supervision import events
from horovod.runner.supervision.elastic import events as elastic
from horovod.runner.supervision.elastic.rules import Rules
from horovod.runner.supervision.elastic.stopping import Over, Stopping


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
    assert used == [elastic.UseHost("red", 2), elastic.UseHost("blue", 3)]
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
    world.feed(elastic.DiscoveryFailed(1.0, "exit code 3", first=True))
    assert world.verdict is not None
    assert world.verdict.message == "cannot find out which hosts there are: exit code 3"


def test_a_later_one_may_and_is_told_once() -> None:
    world = started(Rules(np=1), red=1)
    for _ in range(3):
        world.feed(elastic.DiscoveryFailed(world.now_s, "exit code 3", first=False))
    assert world.lines == ["cannot find out which hosts there are, they stay: exit code 3"]
    assert world.verdict is None
    world.discover(red=1)
    world.feed(elastic.DiscoveryFailed(world.now_s, "exit code 3", first=False))
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
    assert len([each for each in world.done if isinstance(each, elastic.StartOn)]) == 2


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


def test_a_silent_worker_is_ended_and_left_out() -> None:
    world = started(Rules(np=3, min_np=2, worker_timeout_s=30.0), red=3)
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
    world = started(Rules(np=3, min_np=1, worker_timeout_s=30.0), red=3)
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


def test_workers_of_a_host_that_leaves_are_dismissed() -> None:
    world = started(Rules(np=4, min_np=2, grace_s=10.0), red=2, blue=2)
    world.discover(red=2)
    world.wait(1.0)
    assert world.size == 2
    dismissed = [each for each in world.done if isinstance(each, elastic.Dismiss)]
    assert [each.identity for each in dismissed] == ["blue-2", "blue-3"]
    assert dismissed[0].text == "rank 2 (blue-2) leaves: blue is no longer listed"
    world.wait(60.0)  # until the next commit of all
    assert not any(each.told for each in world.workers.values())
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


# -- the end


def test_all_finish() -> None:
    world = started(Rules(np=2), red=2)
    world.finish()
    assert world.verdict is not None
    assert world.verdict.exit_code == 0
    assert world.over().exit_code == 0
    assert not world.lines


def test_early_finishers_do_not_stop_the_rest() -> None:
    world = started(Rules(np=2, min_np=1), red=2)
    world.exit(0, 0)
    world.workers[1].stage = "training"
    world.wait(3000.0)
    assert world.verdict is None
    world.exit(1, 0)
    assert world.verdict is not None
    assert world.verdict.exit_code == 0


def test_those_whose_peers_have_finished_are_let_go() -> None:
    world = started(Rules(np=3, min_np=1, grace_s=10.0), red=3)
    world.exit(0, 0)
    world.reset(1)
    assert world.workers[1].dismissed
    world.workers[2].stopped = True  # and does not even hear it
    world.workers[2].stage = "broken"
    world.reset(2)
    world.end_told()
    world.run(11.0)
    assert world.verdict is not None
    assert world.verdict.exit_code == 0


def test_a_failure_after_others_finished_is_one() -> None:
    world = started(Rules(np=2, min_np=1), red=2)
    world.exit(0, 0)
    world.exit(1, 5)
    assert world.verdict is not None
    assert world.verdict.exit_code == 5
    assert world.verdict.message == "rank 1 on red exited with code 5; other ranks finished"


def test_a_lost_peer_after_others_finished_is_none() -> None:
    world = started(Rules(np=2, min_np=1), red=2)
    world.exit(0, 0)
    world.exit(1, 1, words="horovod.errors.PeerLostError: rank 0 was lost")
    assert world.verdict is not None
    assert world.verdict.exit_code == 0


def test_earlier_failures_do_not_show_in_the_exit_code() -> None:
    world = started(Rules(np=3, min_np=2), red=3)
    world.exit(1, 9)
    world.run()
    world.finish()
    assert world.verdict is not None
    assert world.verdict.exit_code == 0
    assert world.lines[-1].startswith("the job ran for 2.0 s, 1 change of its workers, 1 failure,")


def test_all_fail() -> None:
    world = started(Rules(np=2, min_np=1, cooldown_range=(1, 2)), red=2)
    world.exit(1, 3)
    world.exit(0, 1, words="horovod.errors.PeerLostError: rank 1 was lost")
    assert world.verdict is not None
    assert world.verdict.exit_code == 3
    assert world.verdict.message == (
        "rank 1 on red exited with code 3; no worker is left that knows what was trained "
        "(generation 0)"
    )
    assert isinstance(world.state, Stopping)
    assert "1 failure" in world.over().summary or "2 failures" in world.over().summary


def test_the_same_error_on_several_hosts_is_one_of_the_program() -> None:
    world = started(Rules(np=3, min_np=1, cooldown_range=(1, 2)), red=1, blue=1, green=1)
    world.exit(0, 1, error="ValueError")
    assert world.verdict is None
    world.exit(1, 1, error="ValueError")
    assert world.verdict is not None
    assert world.verdict.exit_code == 1
    assert world.verdict.message.startswith(
        "rank 0 on red exited with code 1; the same error came on blue and red"
    )


def test_an_error_of_one_worker_is_a_failure_of_its_host() -> None:
    world = started(Rules(np=3, min_np=1), red=1, blue=1, green=1)
    world.exit(0, 1, error="ValueError")
    world.run()
    world.exit(1, 1, error="ValueError")
    world.run()
    assert world.hosts == ["green"]


def test_only_newcomers_cannot_go_on() -> None:
    world = started(Rules(np=1, max_np=2, min_np=1), red=1)
    world.discover(red=1, blue=1)
    world.find("blue")
    world.ready(1)
    assert world.size == 2
    world.exit(0, -9)
    world.run()
    assert world.verdict is not None
    assert "no worker is left that knows what was trained" in world.verdict.message


@pytest.mark.parametrize(("limit", "changes"), [(0, 0), (1, 1), (2, 2)])
def test_the_reset_limit(limit: int, changes: int) -> None:
    world = started(Rules(np=4, min_np=1, reset_limit=limit), red=4)
    for number in range(3):
        if world.verdict is None:
            world.exit(number, 1)
            world.run()
    assert len(world.memberships) == 1 + changes
    assert world.verdict is not None
    assert f"as often as --reset-limit {limit} allows" in world.verdict.message


def test_a_generation_that_never_runs_is_not_tried_for_ever() -> None:
    world = started(Rules(np=2), red=2)
    for _ in range(20):
        if world.verdict is None:
            for number in (0, 1):
                world.workers[number].stage = "broken"
                world.reset(number, "could not connect")
    assert world.verdict is not None
    assert "generations in a row never ran" in world.verdict.message


# -- from outside


def test_a_signal_ends_all_workers() -> None:
    world = started(Rules(np=2, grace_s=30.0), red=2)
    world.feed(events.Signal(world.now_s, signal.SIGINT))
    assert world.lines == ["the workers have 30 s to end; Ctrl-C again ends them at once"]
    world.feed(events.Signal(world.now_s, signal.SIGINT))
    assert world.done[-1] == events.KillAll()
    world.end_told()
    assert world.over().exit_code == 130


@pytest.mark.parametrize("moment", ["waiting", "starting", "resetting"])
def test_a_signal_at_any_time(moment: str) -> None:
    world = World(Rules(np=2))
    world.discover(red=1 if moment == "waiting" else 2)
    if moment == "resetting":
        world.run()
        world.exit(1, -9)
    world.feed(events.Signal(world.now_s, signal.SIGTERM))
    assert world.verdict is not None
    assert world.verdict.exit_code == 143
    for _ in range(3):
        world.at_deadline()
    assert world.done[-1] == events.Abandon()
    world.end_told()
    assert world.over().exit_code == 143
    assert isinstance(world.state, Over)


def test_who_did_not_end_in_time_is_named() -> None:
    world = started(Rules(np=2, grace_s=30.0), red=2)
    world.feed(events.Signal(world.now_s, signal.SIGTERM))
    world.workers[1].stopped = True
    world.end_told()
    outcome = world.over()
    assert outcome.message == (
        "stopped by SIGTERM; red-1 did not end within 30 s (--grace) and was killed"
    )
