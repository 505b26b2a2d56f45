"""Hosts, agents and workers that do what an elastic job tells them, and what may happen to them.

Nothing here decides, and no time passes by itself. Each command is checked against what the job
was told before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from horovod._job.membership import Worker
from horovod._job.records import Event as Record
from horovod._job.records import EventKind
from horovod._rank.reports.end import EndReport
from horovod.runner.supervision import commands, events
from horovod.runner.supervision.elastic.policy import ElasticJob
from horovod.runner.supervision.elastic.states import Going
from horovod.runner.supervision.failure import RankExit
from horovod.runner.supervision.stopping import Over

if TYPE_CHECKING:
    from horovod._job.membership import Membership
    from horovod.runner.supervision.commands import Command
    from horovod.runner.supervision.elastic.rules import Rules
    from horovod.runner.supervision.events import Event
    from horovod.runner.supervision.outcome import Outcome
    from horovod.runner.supervision.policy import State


# What ends a job whatever its workers do.
FROM_OUTSIDE = (events.Signal, events.EndAsked, events.KillAsked, events.HostsGone)


@dataclass
class Process:
    """A process.

    Attributes:
        stage: loading, ready, connecting, training, broken, waiting or left.
        generation: the last one that it went into; -1 for none.
        stopped: whether it does nothing any more, as after SIGSTOP.
        known_dead: whether the job was told of its end in any way.
    """

    number: int
    identity: str
    host: str
    slot: int
    stage: str = "loading"
    generation: int = -1
    trained: int = -1
    dismissed: bool = False
    stopped: bool = False
    told: bool = False
    leaving: bool = False
    known_dead: bool = False


@dataclass
class World:
    """One job and all that is around it.

    Attributes:
        now_s: the time.
        workers: that live, by number.
        agents: what each host's agent does: starting or runs.
        lines: what the user was told.
        memberships: all generations.
        broken_up: those whose members were told to give them up while they connect.
        seen: those above 0 into which somebody went who had trained.
        ended: the identities of all processes that have ended.
        failed: those that ended otherwise than well, or cannot be reached.
        cut_short: those who had trained, and were killed or lost with a host that was to stay.
        cut_off: those that waited to train on, and were sent home in place of that.
        loses_wakeups: whether those who train sleep on when a peer fails, unless the job tells.
    """

    rules: Rules
    now_s: float = 0.0
    workers: dict[int, Process] = field(default_factory=dict)
    agents: dict[str, str] = field(default_factory=dict)
    listing: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    done: list[Command] = field(default_factory=list)
    memberships: list[Membership] = field(default_factory=list)
    broken_up: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    cut_short: set[str] = field(default_factory=set)
    cut_off: set[str] = field(default_factory=set)
    loses_wakeups: bool = False
    told_end: bool = False
    verdict: Outcome | None = None
    lives_on: bool = True
    says_running: bool = True
    has_run: bool = False
    went_wrong: bool = False

    def __post_init__(self) -> None:
        self.policy = ElasticJob(self.rules)
        self.state: State = self.policy.begin(self.now_s).state

    # -- what the job is told

    def feed(self, event: Event) -> list[Command]:
        before = self.state
        self.went_wrong = True  # unless this comes to its end
        decision = self.policy.decide(before, event)
        self.state = decision.state
        if decision.reason:
            self.reasons.append(decision.reason)
        self.done += decision.commands
        for command in decision.commands:
            self._execute(command)
        if isinstance(event, events.Deadline):
            assert self.state.deadline_at is None or self.state.deadline_at > self.now_s, (
                f"nothing follows from a deadline: {self.state}"
            )
        self._check_rest()
        self._check_slow()
        if isinstance(self.state, Going):
            self._check_waits()
        elif isinstance(before, Going) and not isinstance(event, FROM_OUTSIDE):
            self._check_end()
        self.went_wrong = False
        return list(decision.commands)

    def _check_waits(self) -> None:
        """Nobody waits for a worker that can do nothing any more, as far as the job knows."""
        gone = self.ended | {each.identity for each in self.workers.values() if each.known_dead}
        for each in self.workers.values():
            if each.stage not in ("connecting", "training") or each.known_dead:
                continue
            names = {one.worker.identity for one in self.memberships[each.generation].members}
            lost = names & (gone if each.stage == "connecting" else self.failed)
            assert not lost, f"{each} waits for {lost}"
        if self.has_run and all(each.trained < 0 for each in self.workers.values()):
            lives = [each for each in self.workers.values() if not each.known_dead]
            idle = [each for each in lives if not (each.dismissed or each.told)]
            # Of who is dead, the exit code may be to come.
            assert not idle or len(lives) < len(self.workers), f"{idle} can never take part"

    def _check_end(self) -> None:
        """The job has ended by itself."""
        assert self.verdict is not None
        lives = [each for each in self.workers.values() if not (each.told or each.known_dead)]
        if "--reset-limit" in self.verdict.message:
            assert self.rules.reset_limit is not None
            enough = len(self.seen) >= self.rules.reset_limit
            assert enough or not self.says_running, f"nobody saw more than {self.seen}"
        else:
            training = [each for each in lives if each.stage == "training" and not each.stopped]
            assert not training, f"{training} still train: {self.verdict}"
        if self.verdict.exit_code == 0:
            middle = [each for each in lives if each.trained >= 0 and each.stage != "left"]
            assert not middle, f"{middle} are in the middle: {self.verdict}"
            assert not self.cut_off, f"{self.cut_off} were in the middle"
            newest = self.memberships[-1].places if self.memberships else {}
            lost = self.cut_short & newest.keys()
            assert not lost, f"{lost} did not come to their end: {self.verdict}"

    def _check_slow(self) -> None:
        """At most one goes at a time, and only if the user wants it."""
        if isinstance(self.state, Going) and self.state.facts is not None:
            slow = [each for each in self.state.facts.alive() if each.slow]
            assert len(slow) <= (self.rules.slow_worker in ("remove", "replace"))

    def _check_rest(self) -> None:
        """Somebody has to do something, or there is a deadline."""
        if isinstance(self.state, Over) or commands.Abandon() in self.done:
            return
        # Nobody knows that a worker is stopped until others have to wait for it.
        broken = isinstance(self.state, Going) and self.state.facts.loss is not None
        waits = broken and any(each.stage == "waiting" for each in self.workers.values())
        can_act = any(
            each.stage in ("loading", "connecting", "training", "broken", "left")
            and not (each.stopped and waits)
            for each in self.workers.values()
        )
        starts = "starting" in self.agents.values()
        ends = self.told_end or any(each.told for each in self.workers.values())
        assert self.state.deadline_at is not None or can_act or starts or ends, (
            f"nothing can happen any more: {self.workers} {self.reasons[-5:]} {self.state}"
        )

    # -- what the job tells

    def _execute(self, command: Command) -> None:
        match command:
            case commands.UseHost():
                assert command.host not in self.agents
                assert command.host in self.listing or self.rules.missed_polls > 1
                self.agents[command.host] = "starting"
            case commands.ReleaseHost():
                assert not [each for each in self.workers.values() if each.host == command.host]
                del self.agents[command.host]
            case commands.StartWorker():
                self._start(command)
            case commands.Publish():
                self._publish(command.membership)
            case commands.BreakUp():
                self._break_up(len(self.memberships) - 1)
            case commands.TellLoss():
                for each in self.workers.values():
                    if each.stage == "training" and each.generation == command.generation:
                        each.stage = "broken"
            case commands.Dismiss():
                worker = self._by_identity(command.identity)
                if worker is not None:
                    worker.dismissed = True
            case commands.EndWorker():
                self.workers[command.worker].told = True
            case commands.EndAll() | commands.KillAll():
                self.told_end = True
            case commands.Announce():
                self.lines.append(command.line)
            case commands.ReportOutcome():
                assert self.verdict is None
                self.verdict = command.outcome

    def _break_up(self, generation: int) -> None:
        self.broken_up.add(generation)
        for each in self.workers.values():
            if each.stage == "connecting" and each.generation == generation:
                each.stage = "broken"

    def _enter(self, worker: Process, generation: int) -> None:
        """A worker goes into the newest generation, and finds out at once if it is broken."""
        worker.stage = "broken" if generation in self.broken_up else "connecting"
        worker.generation = generation
        if generation > 0 and (worker.trained >= 0 or not self.has_run):
            self.seen.add(generation)

    def _start(self, command: commands.StartWorker) -> None:
        assert self.agents[command.host] == "runs"
        assert command.identity == f"{command.host}-{command.worker}"
        assert command.identity not in self.ended
        # A host may be missing for some answers.
        assert command.slot < self.listing.get(command.host, 9)
        for each in self.workers.values():
            assert (each.host, each.slot) != (command.host, command.slot), "a slot is taken"
        new = Process(command.worker, command.identity, command.host, command.slot)
        self.workers[command.worker] = new

    def _publish(self, membership: Membership) -> None:
        last = self.memberships[-1] if self.memberships else None
        assert membership.generation == len(self.memberships)
        most = self.rules.max_np or len(membership.members)
        assert self.rules.min_np <= len(membership.members) <= most
        members = [self._member(each.worker) for each in membership.members]
        for member in members:
            assert not member.known_dead, f"{member} is dead"
            assert not member.told
            assert not member.dismissed
            assert member.stage not in ("loading", "left")
        trained = [each for each in members if each.trained >= 0]
        if trained:
            assert members[0] in trained, "rank 0 knows nothing"
            assert membership.members[0].since == min(each.since for each in membership.members)
        else:
            assert not self.has_run, "nobody knows what was trained"
        if last is not None and self.has_run:  # until then, it may be taken to run
            self._check_one_plan_at_a_time(last)
        self._break_up(membership.generation - 1)
        self.memberships.append(membership)
        for member in members:
            if member.stage in ("ready", "waiting"):
                self._enter(member, membership.generation)

    def _check_one_plan_at_a_time(self, last: Membership) -> None:
        """The last generation runs, or it lost a member, or one gave it up."""
        here = {each.identity: each for each in self.workers.values()}
        for member in last.members:
            worker = here.get(member.worker.identity)
            if worker is None or worker.known_dead or worker.told or worker.stage == "waiting":
                return
            if worker.leaving and worker.trained < 0:  # nobody trains with it yet
                return
        assert all(here[each.worker.identity].trained == last.generation for each in last.members)

    def _member(self, worker: Worker) -> Process:
        found = self._by_identity(worker.identity)
        assert found is not None, f"{worker} has ended"
        return found

    def _by_identity(self, identity: str) -> Process | None:
        return next((each for each in self.workers.values() if each.identity == identity), None)

    # -- what happens to hosts

    def discover(self, **slots: int) -> list[Command]:
        self.listing = slots
        return self.feed(events.HostsDiscovered(self.now_s, tuple(slots.items())))

    def find(self, host: str) -> list[Command]:
        self.agents[host] = "runs"
        return self.feed(events.HostFound(self.now_s, host))

    def lose_host(self, host: str, reason: str = "it ended") -> list[Command]:
        del self.agents[host]
        for number, each in list(self.workers.items()):
            if each.host == host:
                self.ended.add(each.identity)
                self.failed.add(each.identity)
                del self.workers[number]
                self._note_cut(each)
                self._break_peers(each)
        return self.feed(events.HostLost(self.now_s, host, reason))

    # -- what happens to workers

    def say(
        self, process: Process, kind: EventKind, text: str = "", generation: int = -1, **more: Any
    ) -> list[Command]:
        """A worker, or the store about it, leaves a record."""
        worker = Worker(process.identity, process.host, process.slot)
        record = Record(kind, worker, text, generation, **more)
        return self.feed(events.WorkerSaid(self.now_s, record))

    def ready(self, number: int) -> list[Command]:
        worker = self.workers[number]
        worker.stage = "ready"
        self.feed(events.WorkerStarted(self.now_s, number))
        return self.say(worker, EventKind.READY)

    def gone(self, number: int) -> list[Command]:
        """The connection of a worker ends; its process may not have."""
        worker = self.workers[number]
        worker.known_dead = True
        self.failed.add(worker.identity)
        return self.say(worker, EventKind.GONE, "connection lost")

    def exit(
        self, number: int, code: int = 0, error: str = "", words: str = "", why: str = ""
    ) -> list[Command]:
        worker = self.workers.pop(number)
        self.ended.add(worker.identity)
        if code:
            self.failed.add(worker.identity)
        if code and worker.told:
            self._note_cut(worker)
        self._break_peers(worker, told=not code)
        report = EndReport(error, "bad", "train.py:7") if error else None
        tail = (words,) if words else ()
        ended = RankExit(0, worker.host, code, self.now_s, tail, why, number, report)
        return self.feed(events.WorkerExited(self.now_s, number, ended))

    def _note_cut(self, worker: Process) -> None:
        """A worker is gone that neither had come to its end nor was asked to go."""
        is_listed = worker.slot < self.listing.get(worker.host, 0)
        asked = worker.dismissed or worker.leaving or worker.stage == "left"
        if worker.trained >= 0 and is_listed and not asked:
            self.cut_short.add(worker.identity)

    def _break_peers(self, worker: Process, *, told: bool = False) -> None:
        """Peers in the same generation notice at their next collective, if anything wakes them.

        Args:
            worker: what is lost to them.
            told: whether it took leave.
        """
        if worker.trained < worker.generation or (self.loses_wakeups and not told):
            return  # nobody is connected to it, or nobody wakes up
        for each in self.workers.values():
            is_peer = each.generation == worker.generation >= 0
            if is_peer and each.stage == "training":
                each.stage = "broken"

    def time_out(self) -> None:
        """Whoever waits for a worker that does nothing any more gives up at last."""
        for each in list(self.workers.values()):
            if each.stopped:
                self._break_peers(each, told=True)
                for peer in self.workers.values():
                    if peer.stage == "connecting" and peer.generation == each.generation:
                        peer.stage = "broken"

    def reset(self, number: int, text: str = "rank 1 was lost", replayed: int = 0) -> list[Command]:
        """A worker whose generation is broken gives it up; its peers will have to."""
        worker = self.workers[number]
        self._break_peers(worker)
        worker.stage = "waiting"
        given_up, newest = worker.generation, self.memberships[-1]
        is_behind = newest.generation > given_up and newest.member(worker.identity) is not None
        if is_behind and not worker.dismissed:
            self._enter(worker, newest.generation)
        return self.say(worker, EventKind.RESET, text, given_up, replayed=replayed)

    def leaving(self, number: int) -> list[Command]:
        worker = self.workers[number]
        worker.leaving = True
        return self.say(worker, EventKind.LEAVING, "SIGTERM")

    def slow(self, number: int, gain: float = 0.5) -> list[Command]:
        """The others wait for a worker."""
        identity = self.workers[number].identity
        return self.feed(events.WorkerSlow(self.now_s, identity, gain, "the others wait for it"))

    def leave(self, number: int) -> list[Command]:
        worker = self.workers[number]
        worker.stage, worker.known_dead = "left", True
        self._break_peers(worker, told=True)
        return self.say(worker, EventKind.LEFT)

    def boundary(self) -> None:
        """Workers that train together look for a newer generation together, if none is stuck."""
        training = [each for each in self.workers.values() if each.stage == "training"]
        for generation in sorted({each.generation for each in training}):
            group = [each for each in training if each.generation == generation]
            newest = self.memberships[-1]
            if newest.generation == generation or any(each.stopped for each in group):
                continue
            for each in group:
                is_member = newest.member(each.identity) is not None
                each.stage = "waiting"
                if is_member:
                    self._enter(each, newest.generation)

    def connect(self) -> None:
        """The newest generation connects, as soon as all of it is there."""
        newest = self.memberships[-1]
        here = {each.identity: each for each in self.workers.values()}
        members = [here.get(each.worker.identity) for each in newest.members]
        for each in members:
            if each is None or each.stopped:
                return
            if each.stage != "connecting" or each.generation != newest.generation:
                return
        for each in members:
            assert each is not None
            each.stage, each.trained = "training", newest.generation
        for each in members:
            assert each is not None
            if self.says_running and each.number in self.workers:
                generation = newest.generation
                self.say(each, EventKind.RUNNING, generation=generation, stood_s=0.25)
        self.has_run = self.has_run or self.says_running

    def end_told(self) -> None:
        """Agents end the processes that they are to end; dismissed workers end by themselves."""
        for number, each in list(self.workers.items()):
            if each.told or self.told_end:
                self.exit(number, -9 if each.stopped else -15)
            elif each.dismissed and not each.stopped and each.stage in ("ready", "waiting"):
                if each.trained >= 0 and self.memberships[-1].member(each.identity):
                    self.cut_off.add(each.identity)
                self.exit(number, 0)

    # -- time

    def at_deadline(self) -> None:
        if self.state.deadline_at is not None:
            self.now_s = max(self.now_s, self.state.deadline_at)
            self.feed(events.Deadline(self.now_s))

    def wait(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.state.deadline_at is not None and self.state.deadline_at <= until_s:
            self.at_deadline()
        self.now_s = until_s

    def all_act(self) -> None:
        """Whoever can do something does it."""
        for host, does in list(self.agents.items()):
            if does == "starting":
                self.find(host)
        for number, each in list(self.workers.items()):
            if number not in self.workers or each.stopped or each.told or self.told_end:
                continue
            if each.stage == "loading":
                self.ready(number)
            elif each.stage == "broken":
                self.reset(number)
        if self.memberships:
            self.boundary()
            self.connect()
        self.end_told()

    def run(self, seconds: float = 1.0) -> None:
        """Everybody acts, and so much time passes."""
        until_s = self.now_s + seconds
        for _ in range(40):
            self.all_act()
            deadline_at = self.state.deadline_at
            if deadline_at is not None and deadline_at <= until_s:
                self.at_deadline()
        self.now_s = until_s
        self.all_act()

    def finish(self) -> None:
        """Those who train come to their end."""
        training = [each for each in self.workers.values() if each.stage == "training"]
        for each in training:
            if not each.stopped:
                self.exit(each.number, 0)

    def over(self) -> Outcome:
        """All processes have ended."""
        assert not self.workers
        self.feed(events.HostsGone(self.now_s))
        assert self.state.outcome is not None
        return self.state.outcome

    # -- what a test asks

    @property
    def size(self) -> int:
        return len(self.memberships[-1].members) if self.memberships else 0

    @property
    def hosts(self) -> list[str]:
        return self.memberships[-1].hosts

    def on(self, host: str) -> list[int]:
        return [each.number for each in self.workers.values() if each.host == host]
