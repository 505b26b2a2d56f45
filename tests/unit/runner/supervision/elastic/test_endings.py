"""How an elastic job ends. No processes."""

from __future__ import annotations

import signal

import pytest
from elastic_world import World

from horovod.runner.supervision import events
from horovod.runner.supervision.elastic.rules import Rules
from horovod.runner.supervision.elastic.stopping import Over, Stopping


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


def test_a_worker_that_never_ends_does_not_hold_up_those_who_finished() -> None:
    world = started(Rules(np=3, min_np=1, grace_s=10.0), red=3)
    world.workers[2].stopped = True
    world.exit(0, 0)
    world.reset(1)
    world.end_told()
    world.run(599.0)
    assert world.verdict is None
    world.run(20.0)
    assert world.verdict is not None
    assert world.verdict.exit_code == 0


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
