"""What becomes of a job with fixed workers: decisions, and histories that nobody wrote by hand."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.runner.protocol.frames import GRACE_S, Stop
from horovod.runner.supervision import commands, events
from horovod.runner.supervision.failure import RankExit
from horovod.runner.supervision.fixed import (
    SETTLE_S,
    FixedJob,
    Placed,
    Running,
    Settling,
    Starting,
)
from horovod.runner.supervision.outcome import Outcome
from horovod.runner.supervision.policy import Decision, State
from horovod.runner.supervision.stopping import KILL_S, STOP_S, Killing, Over, Stopping

if TYPE_CHECKING:
    from horovod.runner.supervision.events import Event

GRACE_OF_USER_S = 30.0
HOSTS = ("red", "blue")


def job(num_workers: int = 4) -> FixedJob:
    workers = {rank: Placed(rank, HOSTS[rank % 2]) for rank in range(num_workers)}
    return FixedJob(workers, start_timeout_s=60.0, grace_s=GRACE_OF_USER_S)


def exited(at_s: float, rank: int, code: int, stderr: str = "", why: str = "") -> Event:
    tail = tuple(stderr.splitlines())
    return events.WorkerExited(at_s, rank, RankExit(rank, HOSTS[rank % 2], code, at_s, tail, why))


def after(*happened: Event, num_workers: int = 4) -> Decision:
    """The last decision of a job to which all of this happened."""
    policy = job(num_workers)
    decision = policy.begin(0.0)
    for event in happened:
        decision = policy.decide(decision.state, event)
    return decision


def kinds(decision: Decision) -> list[type]:
    return [type(command) for command in decision.commands]


READY = [events.HostFound(1.0, host) for host in HOSTS]


def test_a_job_that_goes_well() -> None:
    assert isinstance(after().state, Starting)
    assert after().state.deadline_at == 60.0
    assert after().commands == [commands.UseHost(host, 2) for host in HOSTS]
    assert isinstance(after(READY[0]).state, Starting)
    ready = after(*READY)
    assert not ready.commands
    assert isinstance(ready.state, Running)
    assert ready.state.deadline_at is None
    ends = [exited(2.0 + rank, rank, 0) for rank in range(4)]
    assert kinds(after(*READY, *ends)) == [commands.ReportExit]
    over = after(*READY, *ends, events.HostsGone(9.0))
    assert over.state.outcome == Outcome(0)


def test_the_others_get_a_moment_to_fail_by_themselves() -> None:
    failed = after(*READY, events.WorkerStarted(2.0, 1), exited(3.0, 1, 7, "boom"))
    assert isinstance(failed.state, Settling)
    assert failed.state.deadline_at == 3.0 + SETTLE_S
    assert failed.reason.startswith("rank 1 on blue exited with code 7")
    stopped = after(*READY, exited(3.0, 1, 7, "boom"), events.Deadline(5.0))
    assert stopped.commands[0] == commands.Announce(
        "rank 1 on blue exited with code 7; stopping ranks 0, 2, 3"
    )
    assert stopped.commands[1] == commands.EndAll(Stop(signal.SIGTERM, GRACE_S))
    assert kinds(stopped)[2:] == [commands.ReportOutcome]
    assert stopped.state.deadline_at == 5.0 + GRACE_S + STOP_S


def test_a_job_whose_workers_have_all_failed_stops_at_once() -> None:
    both = after(*READY, exited(3.0, 0, 1), exited(3.1, 1, 2), num_workers=2)
    assert isinstance(both.state, Stopping)
    assert both.state.verdict.exit_code == 1


@pytest.mark.parametrize("is_late", [False, True])
def test_a_rank_that_ends_well_in_the_middle_is_named(is_late: bool) -> None:
    words = "horovod.errors.ShutDownError: rank 1 (blue:7) has shut Horovod down (it ended)"
    ends = [exited(3.0, 1, 0), exited(3.1, 0, 1, words), exited(3.1, 3, 1, words)]
    ends = [*ends[1:], ends[0]] if is_late else ends
    stopped = after(*READY, *ends, events.Deadline(6.0))
    assert isinstance(stopped.state, Stopping)
    assert stopped.state.verdict.exit_code == 1
    assert stopped.state.verdict.message == (
        "rank 1 on blue exited with code 0 while ranks 0, 2, 3 still needed it; rank 0 on red "
        "exited with code 1"
    )


def test_a_worker_that_cannot_be_started_ends_the_job_at_once() -> None:
    decision = after(*READY, exited(2.0, 3, 127, why="the command 'x' was not found"))
    assert isinstance(decision.state, Stopping)
    assert decision.state.verdict.exit_code == 127
    assert kinds(decision) == [commands.ReportExit, commands.EndAll, commands.ReportOutcome]


def test_a_signal_gives_the_workers_their_time() -> None:
    decision = after(*READY, events.Signal(5.0, signal.SIGINT))
    assert decision.commands[0] == commands.Announce(
        "the ranks have 30 s to end; Ctrl-C again ends them at once"
    )
    assert decision.commands[1] == commands.EndAll(Stop(signal.SIGINT, GRACE_OF_USER_S))
    again = after(*READY, events.Signal(5.0, signal.SIGINT), events.Signal(6.0, signal.SIGINT))
    assert kinds(again) == [commands.KillAll]
    assert again.state.deadline_at == 6.0 + KILL_S


def test_a_system_that_repeats_itself_does_not_hurry() -> None:
    twice = [events.Signal(5.0, signal.SIGTERM), events.Signal(5.1, signal.SIGTERM)]
    decision = after(*READY, *twice)
    assert decision.reason == "SIGTERM: the ranks are ending already"
    assert not decision.commands


def test_who_did_not_end_in_time_is_named() -> None:
    over = after(
        *READY,
        events.WorkerStarted(2.0, 0),
        events.Signal(5.0, signal.SIGTERM),
        exited(6.0, 0, -signal.SIGTERM),
        exited(35.0, 1, -signal.SIGKILL),
        events.HostsGone(36.0),
        num_workers=2,
    )
    assert over.state.outcome is not None
    assert over.state.outcome.exit_code == 128 + signal.SIGTERM
    assert over.state.outcome.message == (
        "stopped by SIGTERM; rank 1 did not end within 30 s (--grace) and was killed"
    )
    assert over.state.outcome.summary == "the job ran for 36.0 s: ranks 0, 1 were stopped"


def test_a_host_that_is_lost_ends_the_job_unless_a_rank_failed_before() -> None:
    lost = events.HostLost(4.0, "blue", "it ended")
    alone = after(*READY, lost).state
    assert isinstance(alone, Stopping)
    assert alone.verdict.message == "the agent of blue is gone: it ended"
    behind = after(*READY, exited(3.0, 1, 7), lost).state
    assert isinstance(behind, Stopping)
    assert behind.verdict.exit_code == 7
    follow_up = exited(3.0, 0, 1, "horovod.errors.PeerLostError: rank 1 was lost")
    first = after(*READY, follow_up, lost).state
    assert isinstance(first, Stopping)
    assert first.verdict.message == "the agent of blue is gone: it ended"


def test_hosts_that_fail_before_the_start_are_ruled_out() -> None:
    lost = events.HostLost(2.0, "blue", "no python")
    assert after(lost).reason == "blue: no python"
    late = after(lost, events.Deadline(60.0))
    (give_up,) = late.commands
    assert isinstance(give_up, commands.GiveUpHost)
    assert give_up.host == "red"
    failed = after(lost, events.Deadline(60.0), events.HostLost(60.0, "red", give_up.reason))
    assert kinds(failed) == [commands.EndAll, commands.ReportOutcome]
    assert isinstance(failed.state, Stopping)
    assert failed.state.verdict.message == (
        "cannot start on 2 hosts:\n    blue: no python\n    red: no agent started there within "
        "60 s; raise --start-timeout if it needs longer"
    )


def test_hosts_that_have_to_find_the_store_hear_what_all_reach() -> None:
    endpoints = (("10.0.0.1", 4000), ("10.0.0.2", 4000))
    policy = FixedJob({0: Placed(0, "red"), 1: Placed(1, "blue")}, 60.0, 1.0, 1.0, endpoints)
    decision = policy.begin(0.0)
    for event in (
        *(events.HostFound(1.0, host, knows_store=False) for host in HOSTS),
        *(events.HostReached(2.0, "red", endpoint) for endpoint in endpoints),
        events.HostReached(3.0, "blue", endpoints[1]),
    ):
        assert isinstance(decision.state, Starting)
        decision = policy.decide(decision.state, event)
    assert decision.commands == [commands.ChooseEndpoint(endpoints[1])]
    assert isinstance(decision.state, Running)


def test_an_agent_that_stops_its_workers_passes_its_signal_on() -> None:
    decision = after(*READY, events.HostStopping(3.0, "red", "it received SIGINT", signal.SIGINT))
    assert isinstance(decision.state, Stopping)
    assert decision.state.verdict.stop_signal == signal.SIGINT


def test_the_last_deadline_lets_go_of_agents_that_do_not_answer() -> None:
    history = [*READY, exited(3.0, 1, 7), events.Deadline(5.0), events.Deadline(11.0)]
    assert kinds(after(*history)) == [commands.KillAll]
    last = after(*history, events.Deadline(12.0))
    assert last.commands == [commands.Abandon()]
    assert isinstance(last.state, Killing)
    assert last.state.deadline_at is None


# -- random histories


@dataclass
class World:
    """A job whose agents do what they are told; nothing here decides."""

    policy: FixedJob
    num_workers: int
    now_s: float = 0.0
    state: State = field(default_factory=State)
    alive: set[int] = field(default_factory=set)
    exits: list[RankExit] = field(default_factory=list)
    done: list[commands.Command] = field(default_factory=list)
    told_to_end: bool = False
    gone: bool = False

    def feed(self, event: Event) -> None:
        decision = self.policy.decide(self.state, event)
        self.state = decision.state
        self.done += decision.commands
        for command in decision.commands:
            if isinstance(command, commands.EndAll):
                self.told_to_end = True
            elif isinstance(command, commands.GiveUpHost):
                self.feed(events.HostLost(self.now_s, command.host, command.reason))

    def end(self, rank: int, code: int) -> None:
        if rank in self.alive:
            self.alive.discard(rank)
            ended = RankExit(rank, HOSTS[rank % 2], code, self.now_s)
            if not self.told_to_end:
                self.exits.append(ended)
            self.feed(events.WorkerExited(self.now_s, rank, ended))

    def at_deadline(self) -> None:
        if self.state.deadline_at is not None:
            self.now_s = max(self.now_s, self.state.deadline_at)
            self.feed(events.Deadline(self.now_s))


STEP = st.one_of(
    st.tuples(st.just("exit"), st.integers(0, 3), st.sampled_from([0, 0, 1, 3, -9, -11])),
    st.tuples(st.just("signal"), st.sampled_from([2, 15, 1]), st.just(0)),
    st.tuples(st.just("lost"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("stopping"), st.integers(0, 1), st.sampled_from([0, 15])),
    st.tuples(st.sampled_from(["ready", "deadline", "asked", "kill"]), st.just(0), st.just(0)),
)


def happen(world: World, what: str, number: int, code: int) -> None:
    world.now_s += 0.5
    match what:
        case "exit":
            world.end(number % world.num_workers, code)
        case "signal":
            world.feed(events.Signal(world.now_s, number))
        case "lost":
            world.feed(events.HostLost(world.now_s, HOSTS[number], "it ended"))
        case "stopping":
            world.feed(events.HostStopping(world.now_s, HOSTS[number], "full", code))
        case "ready":
            for host in HOSTS[: world.num_workers]:
                world.feed(events.HostFound(world.now_s, host))
        case "deadline":
            world.at_deadline()
        case "asked":
            world.feed(events.EndAsked(world.now_s, Outcome(9, "elsewhere")))
        case "kill":
            world.feed(events.KillAsked(world.now_s))


def played(num_workers: int, steps: list[tuple[str, int, int]]) -> World:
    policy = job(num_workers)
    world = World(policy, num_workers, alive=set(range(num_workers)))
    world.state = policy.begin(0.0).state
    for rank in range(num_workers):
        world.feed(events.WorkerStarted(0.0, rank))
    for step in steps:
        happen(world, *step)
    return world


@given(st.integers(1, 4), st.lists(STEP, max_size=12))
def test_no_history_leaves_the_job_hanging(num_workers: int, steps: list) -> None:  # type: ignore[type-arg]
    world = played(num_workers, steps)
    # Nothing more happens by itself: what waits has a deadline, or workers that go on for good.
    for _ in range(6):
        at_rest = isinstance(world.state, Running) or commands.Abandon() in world.done
        assert at_rest or world.state.deadline_at is not None
        world.at_deadline()
    if not isinstance(world.state, Running):
        assert commands.Abandon() in world.done
    for rank in sorted(world.alive):
        world.end(rank, 0)
    world.feed(events.HostsGone(world.now_s))
    assert isinstance(world.state, Over)
    assert world.state.outcome is not None


@given(st.integers(1, 4), st.lists(STEP, max_size=12))
def test_workers_are_told_to_end_once_and_the_first_verdict_counts(
    num_workers: int,
    steps: list,  # type: ignore[type-arg]
) -> None:
    world = played(num_workers, steps)
    for kind in (commands.EndAll, commands.KillAll, commands.ReportOutcome):
        assert sum(isinstance(command, kind) for command in world.done) <= 1
    told = [each.outcome for each in world.done if isinstance(each, commands.ReportOutcome)]
    world.feed(events.HostsGone(world.now_s))
    assert world.state.outcome is not None
    assert [each.exit_code for each in told] in ([], [world.state.outcome.exit_code])
    reported = [each.ended.rank for each in world.done if isinstance(each, commands.ReportExit)]
    assert len(reported) == len(set(reported))


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.just("exit"), st.integers(0, 3), st.sampled_from([0, 1, 3, 200]))),
)
def test_the_exit_code_is_that_of_the_first_failure(
    num_workers: int,
    steps: list,  # type: ignore[type-arg]
) -> None:
    world = played(num_workers, [("ready", 0, 0), *steps])
    for _ in range(4):
        world.at_deadline()
    world.feed(events.HostsGone(world.now_s))
    assert world.state.outcome is not None
    codes = [each.returncode for each in world.exits if each.returncode]
    assert world.state.outcome.exit_code == (codes[0] if codes else 0)


@pytest.mark.parametrize("event", [READY[0], events.Signal(99.0, 15), events.Deadline(99.0)])
def test_nothing_happens_to_a_job_that_is_over(event: Event) -> None:
    over = after(*READY, events.HostsGone(5.0)).state
    assert job().decide(over, event) == Decision(over)
