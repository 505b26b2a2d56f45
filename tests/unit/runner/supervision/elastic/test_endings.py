"""How an elastic job ends. No processes."""

from __future__ import annotations

import signal

import pytest
from elastic_world import World

from horovod.runner.supervision import commands, events
from horovod.runner.supervision.elastic.rules import Rules
from horovod.runner.supervision.stopping import Over, Stopping


def started(rules: Rules, **slots: int) -> World:
    """A job that runs on these hosts."""
    world = World(rules)
    world.discover(**slots)
    world.run()
    assert world.size, world.reasons
    return world


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


def test_a_worker_that_ends_well_in_the_middle_is_lost() -> None:
    world = started(Rules(np=3, min_np=1), red=3)
    world.exit(1, 0)
    assert {world.workers[each].stage for each in (0, 2)} == {"broken"}
    world.run()
    assert world.verdict is None
    assert [each.worker.identity for each in world.memberships[1].members] == ["red-0", "red-2"]
    line = (
        "rank 1 (red-1) on red ended with code 0 while rank 0 (red-0) on red, rank 2 (red-2) on "
        "red still train"
    )
    assert world.lines[0] == line
    assert world.lines[1] == f"generation 1, 3 -> 2 ranks: {line}"
    world.run(60.0)  # its slot gets no other one, which would do the same
    assert world.size == 2
    world.finish()
    assert world.verdict is not None
    assert world.verdict.exit_code == 0
    assert ", 1 change of its workers, 1 failure, " in world.lines[-1]


def test_the_job_fails_if_too_few_are_left_in_the_middle() -> None:
    world = started(Rules(np=2, fixed_hosts=True), red=2)
    world.exit(1, 0)
    world.run()
    assert world.verdict is not None
    assert world.verdict.exit_code == 1
    assert world.verdict.message.startswith(
        "1 of the 2 workers are there that the job needs, and no host can come that could have "
        "more; rank 1 (red-1) on red ended with code 0 while rank 0 (red-0) on red still trains;"
    )


def test_all_who_are_in_the_middle_are_named() -> None:
    world = started(Rules(np=4, min_np=1), red=4)
    world.exit(1, 0)
    world.exit(2, 0)
    world.reset(0)
    world.reset(3)
    world.run()
    assert world.lines[0] == (
        "rank 1 (red-1) on red, rank 2 (red-2) on red ended with code 0 while rank 0 (red-0) on "
        "red, rank 3 (red-3) on red still train"
    )
    assert world.size == 2


def test_a_worker_that_ends_well_before_the_first_generation_runs_is_lost() -> None:
    world = World(Rules(np=2, min_np=1))
    world.discover(red=2)
    world.find("red")
    for each in (0, 1):
        world.ready(each)
    world.leave(1)
    assert world.workers[0].stage == "broken"
    world.reset(0)
    world.exit(1, 0)
    world.run()
    assert world.size == 1
    assert world.lines[0].startswith("rank 1 (red-1) on red ended with code 0 while rank 0 (red-0)")


def test_a_failure_after_others_finished_is_one() -> None:
    world = started(Rules(np=2, min_np=1), red=2)
    world.exit(0, 0)
    world.exit(1, 5)
    assert world.verdict is not None
    assert world.verdict.exit_code == 5
    assert world.verdict.message == (
        "rank 1 on red exited with code 5; rank 0 (red-0) on red ended with code 0"
    )


def test_who_fails_since_others_finished_was_in_the_middle() -> None:
    world = started(Rules(np=2, min_np=1), red=2)
    world.exit(0, 0)
    world.exit(1, 1, words="horovod.errors.PeerLostError: rank 0 was lost")
    assert world.verdict is not None
    assert world.verdict.exit_code == 1
    assert world.verdict.message == (
        "rank 1 on red exited with code 1; rank 0 (red-0) on red ended with code 0"
    )


def test_a_member_that_is_ended_since_others_finished_was_in_the_middle() -> None:
    """It may evaluate or save for longer than the others wait, once one of them is lost."""
    world = started(Rules(np=3, min_np=1), red=1, blue=1, green=1)
    red, blue = *world.on("red"), *world.on("blue")
    world.exit(red, 0)
    world.lose_host("green")
    world.workers[blue].stage = "training"
    world.wait(700.0)
    world.end_told()
    assert world.verdict is not None
    assert world.verdict.exit_code == 1
    assert world.verdict.message == (
        "rank 2 (green-2) was lost with green; rank 1 (blue-1) on blue was ended: others finished, "
        "but it has not ended within 600 s; rank 0 (red-0) on red ended with code 0"
    )


def test_a_member_that_is_killed_has_not_finished_with_the_others() -> None:
    world = started(Rules(np=2, min_np=1), red=1, blue=1)
    red, blue = *world.on("red"), *world.on("blue")
    world.workers[blue].stopped = True
    silent = events.WorkerSilent(world.now_s, world.workers[blue].identity, 60.0)
    world.feed(silent)
    world.exit(blue, -9)
    world.exit(red, 0)
    assert world.verdict is not None
    assert world.verdict.exit_code == 1
    assert "rank 1 (blue-1) on blue was ended: it has been silent" in world.verdict.message


def test_a_member_whose_host_vanishes_has_not_finished_with_the_others() -> None:
    """Its connection may end before that of its agent."""
    world = started(Rules(np=2, min_np=1), red=1, blue=1)
    red, blue = *world.on("red"), *world.on("blue")
    world.gone(blue)
    world.lose_host("blue")
    world.exit(red, 0)
    assert world.verdict is not None
    assert world.verdict.exit_code == 1
    assert world.verdict.message.startswith("rank 1 (blue-1) was lost with blue; rank 0 (red-0)")


@pytest.mark.parametrize("how", ["host", "code"])
def test_a_newcomer_that_is_lost_before_it_trains_is_not_missed_at_the_end(how: str) -> None:
    world = started(Rules(np=2, min_np=2), red=2)
    world.discover(red=2, blue=1)
    world.find("blue")
    world.ready(*world.on("blue"))
    assert world.size == 3
    world.exit(0, 0)
    world.workers[1].stage = "training"  # it evaluates
    if how == "host":
        world.lose_host("blue")
    else:
        world.exit(*world.on("blue"), 1)
    world.exit(1, 0)
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


def test_the_end_report_says_how_many_samples_were_done_again() -> None:
    world = started(Rules(np=3, min_np=1), red=3)
    for lost, others in ((0, (1, 2)), (1, (2,))):
        world.gone(lost)
        for each in others:  # all of them go back over the same samples
            world.reset(each, replayed=64)
        world.run()
    world.finish()
    assert world.lines[-1].endswith(", 128 samples done again")


def test_all_fail() -> None:
    world = started(Rules(np=2, min_np=1, cooldown_range=(1, 2)), red=2)
    world.exit(1, 3)
    world.exit(0, 1, words="horovod.errors.PeerLostError: rank 1 was lost")
    assert world.verdict is not None
    assert world.verdict.exit_code == 3
    # Nobody is there who could go on, so there is nothing to say of what was trained.
    assert world.verdict.message == "rank 1 on red exited with code 3"
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


def test_newcomers_do_not_begin_anew_when_all_others_have_left() -> None:
    world = started(Rules(np=2, min_np=1), red=2)
    world.discover(red=2, blue=1)
    world.find("blue")
    world.leave(0)
    world.leave(1)
    world.ready(2)
    world.wait(3000.0)
    assert len(world.memberships) == 1
    world.exit(0, 0)
    world.exit(1, 0)
    world.end_told()
    assert world.verdict is not None
    assert world.verdict.exit_code == 0


def test_a_worker_that_never_ends_does_not_hold_up_those_in_the_middle() -> None:
    world = started(Rules(np=3, min_np=1, grace_s=10.0), red=3)
    world.workers[2].stopped = True
    world.exit(0, 0)
    world.reset(1)
    world.run(599.0)
    assert len(world.memberships) == 1
    world.run(20.0)
    assert [each.worker.identity for each in world.memberships[1].members] == ["red-1"]
    world.run()
    world.finish()
    assert world.verdict is not None
    assert world.verdict.exit_code == 0


def test_a_newcomer_that_was_admitted_too_late_goes_at_once() -> None:
    world = started(Rules(np=2, min_np=1, grace_s=10.0), red=2)
    world.discover(red=2, blue=1)
    world.find("blue")
    world.ready(2)
    assert world.size == 3
    assert world.workers[2].stage == "connecting"
    world.exit(0, 0)
    assert world.workers[2].stage == "broken"  # without rank 0 there is nothing to wait for
    assert not world.workers[2].dismissed
    world.exit(1, 0)
    assert world.workers[2].dismissed
    world.all_act()
    assert world.verdict is not None
    assert world.verdict.exit_code == 0
    assert world.now_s == 1.0
    assert world.lines == ["generation 1, 2 -> 3 ranks: blue-2 joins"]  # no summary: no change


def test_a_newcomer_stays_if_somebody_is_in_the_middle() -> None:
    world = started(Rules(np=2, fixed_hosts=False), red=2)
    world.discover(red=2, blue=1)
    world.find("blue")
    world.ready(2)
    world.exit(0, 0)
    world.run()
    assert [each.worker.identity for each in world.memberships[-1].members] == ["red-1", "blue-2"]
    assert world.verdict is None


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


# -- newcomers that wait while the others train


@pytest.mark.parametrize("limit", [None, 1])
def test_newcomers_may_give_up_as_often_as_they_like(limit: int | None) -> None:
    world = started(Rules(np=2, min_np=1, reset_limit=limit), red=2)
    world.discover(red=2, blue=1)
    world.find("blue")
    world.ready(2)
    assert len(world.memberships) == 2
    for _ in range(30):
        world.reset(2, "rank 0 never appeared within 30 s")
        world.wait(1.0)
    assert world.verdict is None
    assert {world.workers[each].stage for each in (0, 1)} == {"training"}
    assert world.lines == ["generation 1, 2 -> 3 ranks: blue-2 joins"]
    world.run()  # at last they come to a commit
    assert world.memberships[-1].members[2].worker.identity == "blue-2"
    world.finish()
    assert world.verdict is not None
    assert world.verdict.exit_code == 0
    assert ", 1 change of its workers, 0 failures, " in world.lines[-1]
    assert "stood still for 0.2 s" in world.lines[-1] or "stood still for 0.3 s" in world.lines[-1]


def test_a_newcomer_that_gives_up_since_nobody_can_connect_counts() -> None:
    world = started(Rules(np=1), red=1)
    world.discover(red=1, blue=1)
    world.find("blue")
    world.ready(1)
    for _ in range(20):
        if world.verdict is None:
            world.boundary()
            for number in (1, 0):  # the newcomer is the first to say so, each time
                world.workers[number].stage = "broken"
                world.reset(number, "no route to host")
                world.wait(0.2)
    assert world.verdict is not None
    assert "generations in a row never ran" in world.verdict.message


def test_a_newcomer_that_is_to_leave_need_not_wait() -> None:
    world = started(Rules(np=1), red=1)
    world.discover(red=1, blue=1)
    world.find("blue")
    world.ready(1)
    world.leaving(1)
    assert world.workers[1].stage == "broken"
    world.all_act()
    world.wait(0.2)
    assert world.hosts == ["red"]


# -- from outside


def test_a_signal_ends_all_workers() -> None:
    world = started(Rules(np=2, grace_s=30.0), red=2)
    world.feed(events.Signal(world.now_s, signal.SIGINT))
    assert world.lines == ["the workers have 30 s to end; Ctrl-C again ends them at once"]
    world.feed(events.Signal(world.now_s, signal.SIGINT))
    assert world.done[-1] == commands.KillAll()
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
    assert world.done[-1] == commands.Abandon()
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
