"""The launcher's loop: brings what happens to a policy, and executes what that decides.

One thread, one selector, no polling: the loop sleeps until an agent reports, a signal comes or a
deadline passes. A console or a disk never holds up the loop: others write, and the agents hear of
what was taken.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from horovod._rendezvous.bounds import one_line
from horovod.runner.output.console import PATIENCE_S, SHORT_PATIENCE_S
from horovod.runner.protocol.agent_job import DEFAULT_GRACE_S
from horovod.runner.protocol.frames import Frame, FrameError, Kind, number_of
from horovod.runner.supervision import events
from horovod.runner.supervision.failure import RankExit
from horovod.runner.supervision.fixed import FixedJob, Placed
from horovod.runner.supervision.host_readiness import HostReadiness
from horovod.runner.supervision.link import AgentLink
from horovod.runner.supervision.news import News
from horovod.runner.supervision.outcome import FILES_INCOMPLETE, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._rank.reports.end import EndReport
    from horovod.runner.output.console import Console
    from horovod.runner.output.output import Output
    from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
    from horovod.runner.protocol.invitation import Endpoint, Invitation
    from horovod.runner.supervision.connect_back import ConnectBack
    from horovod.runner.supervision.events import Command, Event
    from horovod.runner.supervision.link import AgentProcess

CLOSE_S = 1.0
# What came so few lines ago can still be seen, and is not printed once more.
SCREEN_LINES = 30


@dataclass(frozen=True)
class Alarm:
    """Something elsewhere that ends the job.

    Attributes:
        descriptor: becomes readable when it happens; nothing is read from it.
        cause: tells then what happened.
    """

    descriptor: int
    cause: Callable[[], Outcome]


@dataclass(frozen=True)
class Crossing:
    """How the agents of several hosts find the way to the store.

    Attributes:
        invitation: sent to each of them.
        ways: collects what they report.
        on_chosen: called with the endpoint that all of them reached, before the ranks start.
    """

    invitation: Invitation
    ways: ConnectBack
    on_chosen: Callable[[Endpoint], None]


class Supervisor:
    """Runs one job from start to end in the thread that calls :meth:`run`.

    Args:
        jobs: one per host.
        start_agent: creates the agent process of a host.
        output: takes what the ranks print.
        start_timeout_s: until all agents must have reported.
        log: takes one line about what happens; for ``--verbose``.
        announce: takes one line when the first failure is known and other ranks still run.
        interrupts: descriptor on which the number of a signal arrives as one byte; None if the
            caller lets exceptions such as KeyboardInterrupt end the job.
        wakeups: descriptor that becomes readable when a handler of the caller has to run.
        alarm: tells when something elsewhere ends the job; None if nothing can.
        crossing: how the agents find the way to the store; None if the jobs say it.
        explain: why an agent that is gone did not stay, in one line.
        grace_s: how long ranks may take to end after a signal from outside.
        on_exit: called with the end of each rank that ends by itself, at once.
        report_of: what a worker that failed has said why; None if nobody keeps that.
        on_outcome: called when it is decided how the job ends, before its ranks are stopped.
        policy: what decides; None for a job that fails with its first rank.
    """

    def __init__(
        self,
        jobs: Sequence[AgentJob],
        start_agent: Callable[[AgentJob], AgentProcess],
        output: Output,
        *,
        start_timeout_s: float,
        log: Callable[[str], None],
        announce: Callable[[str], None],
        interrupts: int | None = None,
        wakeups: int | None = None,
        alarm: Alarm | None = None,
        crossing: Crossing | None = None,
        explain: Callable[[AgentLink], str] | None = None,
        grace_s: float = DEFAULT_GRACE_S,
        on_exit: Callable[[RankExit], None] | None = None,
        report_of: Callable[[int], EndReport | None] | None = None,
        on_outcome: Callable[[Outcome], None] | None = None,
        policy: events.Policy | None = None,
    ) -> None:
        self._jobs = jobs
        self._crossing = crossing
        self._explain = explain or _explain
        self._tell_exit = on_exit or (lambda ended: None)
        self._report_of = report_of or (lambda worker: None)
        self._tell_outcome = on_outcome or (lambda outcome: None)
        ways = None if crossing is None else crossing.ways
        self._readiness = HostReadiness([job.hostname for job in jobs], ways)
        self._start_agent = start_agent
        self._output = output
        self._start_timeout_s = start_timeout_s
        self._log = log
        self._announce = announce
        self._interrupts = interrupts
        self._wakeups = wakeups
        self._alarm = alarm
        self._selector = selectors.DefaultSelector()
        self._links: list[AgentLink] = []
        placed = _placed(jobs)
        self._placed = dict(placed)
        self._policy = policy or FixedJob(placed, start_timeout_s, grace_s)
        self._began_s = time.monotonic()
        self._state = self._policy.begin(self._began_s)
        self._all_ready = False
        self._silent = False
        self._dropped = 0
        self._disk_error = ""
        self._left_running = ""

    def run(self) -> Outcome:
        """Runs the job; returns when no process of it is left, or 10 s after a failure.

        Raises:
            BaseException: what a signal handler of the caller raised; the job has been ended.
        """
        try:
            self._began_s = time.monotonic()
            self._state = self._policy.begin(self._began_s)
            if self._interrupts is not None:
                self._selector.register(self._interrupts, selectors.EVENT_READ)
            if self._wakeups is not None:
                self._selector.register(self._wakeups, selectors.EVENT_READ)
            if self._alarm is not None:
                self._selector.register(self._alarm.descriptor, selectors.EVENT_READ, self._alarm)
            self._selector.register(self._console, selectors.EVENT_READ, self._console)
            self._begin()
            self._loop()
            self._let_go()
            self._finish_output()
        except BaseException as error:
            self._end_after_exception(error)
            raise
        finally:
            self._let_go()
            self._selector.close()
        self._feed(events.HostsGone(time.monotonic()))
        outcome = self._state.outcome or Outcome(1, "the launcher lost track of the job")
        outcome = replace(outcome, files_error=self._disk_error, left_running=self._left_running)
        if outcome.exit_code == 0:
            self._log(f"the job ran for {time.monotonic() - self._began_s:.1f} s")
        if not outcome.summary or outcome.failure is None:
            return outcome
        failure = outcome.failure
        near = self._output.lines_since(failure.worker) <= SCREEN_LINES
        printed = bool(failure.stderr_tail) and not self._dropped
        return replace(outcome, details_are_above=printed and near)

    # -- the policy

    def _feed(self, event: Event) -> None:
        """Lets the policy decide on an event, and does what it says."""
        decision = self._policy.decide(self._state, event)
        self._state = decision.state
        if decision.reason:
            self._log(decision.reason)
        for command in decision.commands:
            self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case events.StartAll():
                if self._crossing is not None and command.endpoint is not None:
                    self._cross(self._crossing, *command.endpoint)
            case events.StartWorker():
                self._start_worker(command.host, command.worker)
            case events.EndWorker():
                host = self._placed[command.worker].hostname
                self._link_of(host).send(Kind.END_WORKER, command.how.to_bytes(), command.worker)
            case events.EndAll():
                for link in self._links:
                    link.send(Kind.STOP, command.how.to_bytes())
            case events.KillAll():
                for link in self._links:
                    link.send(Kind.KILL)
            case events.Abandon():
                self._abandon(command.only_missing)
            case events.RuleOut():
                self._readiness.on_failed(command.host, command.reason)
                self._log(f"{command.host}: {command.reason}")
                self._check_start()
            case events.GiveUpStart():
                self._give_up_start()
            case events.Announce():
                self._announce(command.line)
            case events.ReportExit():
                self._tell_exit(command.ended)
            case events.ReportOutcome():
                self._tell_outcome(command.outcome)

    def _start_worker(self, host: str, worker: WorkerJob) -> None:
        self._placed[worker.worker] = Placed(worker.rank, host)
        self._output.place({worker.worker: worker.rank})
        self._link_of(host).send(Kind.START_WORKER, worker.to_json())

    def _link_of(self, host: str) -> AgentLink:
        return next(link for link in self._links if link.hostname == host)

    def _end(self, outcome: Outcome) -> None:
        """Ends the job for a reason that lies outside of it."""
        self._feed(events.EndAsked(time.monotonic(), outcome))

    def _abandon(self, only_missing: bool) -> None:
        for link in self._links:
            if not (only_missing and link.ready):
                link.done = link.done or not only_missing
                link.abandon()

    # -- start and end of the agents

    def _begin(self) -> None:
        for job in self._jobs:
            try:
                self._link_agent(job)
            except OSError as error:
                self._end(Outcome(1, f"cannot start the agent of {job.hostname}: {error}"))
                return

    def _link_agent(self, job: AgentJob) -> AgentLink:
        """Starts the agent of a host.

        Raises:
            OSError: the process cannot be created.
        """
        link = AgentLink(job, self._start_agent(job), self._selector)
        self._links.append(link)
        where = f"is process {link.pid}" if link.pid else "runs there"
        self._log(f"the agent of {job.hostname} {where}")
        self._brief(link)
        return link

    def _brief(self, link: AgentLink) -> None:
        """Tells a new agent its job, or first how to find the way to the store."""
        if self._crossing is None:
            link.send(Kind.JOB, link.job.to_json())
        else:
            link.send(Kind.INVITATION, self._crossing.invitation.to_json())

    def _end_after_exception(self, error: BaseException) -> None:
        """Ends the job; a second exception, from a second Ctrl-C, makes it quick."""
        signum = 0
        if isinstance(error, KeyboardInterrupt):
            signum = signal.SIGINT
        elif isinstance(error, SystemExit):  # as handlers of SIGTERM raise it
            signum = signal.SIGTERM
        try:
            self._end(Outcome(1, stop_signal=signum))
            self._loop()
            self._let_go()
            self._finish_output()
        except BaseException:
            self._silent = True
            self._feed(events.KillAsked(time.monotonic()))
            self._loop()

    def _let_go(self) -> None:
        for link in self._links:
            link.close(CLOSE_S)
        self._links.clear()

    # -- the loop

    def _loop(self) -> None:
        while self._goes_on():
            timeout_s = self._output.show_prompts()
            if self._state.deadline_s is not None:
                left_s = max(0.0, self._state.deadline_s - time.monotonic())
                timeout_s = left_s if timeout_s is None else min(left_s, timeout_s)
            for key, _ in self._selector.select(timeout_s):
                if isinstance(key.data, AgentLink):
                    self._serve(key.data, key.fileobj)
                elif isinstance(key.data, News):
                    for event in key.data.take():
                        self._feed(event)
                elif isinstance(key.data, Alarm):
                    self._selector.unregister(key.fd)
                    self._end(key.data.cause())
                elif key.data is self._console:
                    self._on_console_news()
                elif key.fd == self._wakeups:
                    os.read(key.fd, 64)  # the handler has run, and raised nothing
                else:
                    signum = os.read(key.fd, 1)[0]
                    self._feed(events.Signal(time.monotonic(), signum))
            now_s = time.monotonic()
            if self._state.deadline_s is not None and now_s >= self._state.deadline_s:
                self._feed(events.Deadline(now_s))

    def _goes_on(self) -> bool:
        return any(link.open for link in self._links)

    def _serve(self, link: AgentLink, pipe: object) -> None:
        if link.closed:
            return  # after the selector had found both of its pipes ready
        try:
            for frame in link.on_ready(pipe):
                self._on_frame(link, frame)
        except FrameError as error:
            self._end(Outcome(1, f"the agent of {link.hostname} sent what is {error}"))
            link.abandon()
        if not link.open:
            self._on_end_of(link)

    def _on_end_of(self, link: AgentLink) -> None:
        if not link.done:
            link.done = True
            reason = self._explain(link)
            self._feed(events.HostLost(time.monotonic(), link.hostname, reason))

    def _on_frame(self, link: AgentLink, frame: Frame) -> None:
        match frame.kind:
            case Kind.STDOUT | Kind.STDERR:
                self._relay(link, frame)
            case Kind.READY:
                self._on_ready(link, one_line(frame.payload.decode(errors="replace")))
            case Kind.REACHED | Kind.TRIED:
                self._on_way_found(link, frame)
            case Kind.STARTED:
                pid = number_of(frame.payload, 0)
                rank = self._rank_of(frame.worker)
                self._log(f"rank {rank} on {link.hostname} is process {pid}")
                self._feed(events.WorkerStarted(time.monotonic(), frame.worker))
            case Kind.EXITED:
                self._on_exit(link, frame.worker, number_of(frame.payload))
            case Kind.NOT_STARTED:
                code, _, reason = frame.payload.decode(errors="replace").partition(" ")
                self._on_exit(link, frame.worker, number_of(code), one_line(reason))
            case Kind.STOPPING:
                self._on_agent_stopping(link, one_line(frame.payload.decode(errors="replace")))
            case Kind.NOTE:
                note = one_line(frame.payload.decode(errors="replace"), 1000)
                self._log(f"{link.hostname}: {note}")
            case Kind.LEFT_RUNNING:
                left = one_line(frame.payload.decode(errors="replace"), 1000)
                left = f"{left} on {link.hostname}"
                all_left = filter(None, [self._left_running, left])
                self._left_running = one_line(", ".join(all_left), 1000)
                self._log(f"what the ranks left running is ended: {left}")
            case Kind.DROPPED:
                self._dropped += number_of(frame.payload, 0, 2**62)
            case Kind.DONE:
                link.done = True
            case _:
                raise FrameError(f"not for a launcher: {frame.kind.name}")

    def _on_agent_stopping(self, link: AgentLink, text: str) -> None:
        signum, _, reason = text.partition(" ")
        now_s = time.monotonic()
        self._feed(events.HostStopping(now_s, link.hostname, reason, _signal_of(signum)))

    def _rank_of(self, worker: int) -> int:
        """Of a worker that an agent names.

        Raises:
            FrameError: the job has no such worker.
        """
        if worker not in self._placed:
            raise FrameError(f"about worker {worker}, which this job does not have")
        return self._placed[worker].rank

    def _on_exit(self, link: AgentLink, worker: int, code: int, start_error: str = "") -> None:
        now_s = time.monotonic()
        rank = self._rank_of(worker)
        tail = self._output.stderr_tail(worker)
        # A process that was killed had no time to report.
        report = self._report_of(worker) if code > 0 and not start_error else None
        ended = RankExit(rank, link.hostname, code, now_s, tail, start_error, worker, report)
        self._log(f"rank {rank} on {link.hostname} ended with code {ended.exit_code}")
        self._feed(events.WorkerExited(now_s, worker, ended))

    # -- the start

    def _on_ready(self, link: AgentLink, text: str) -> None:
        link.ready = True
        pid, _, version = text.partition(" ")
        link.agent_pid = number_of(pid, 0) if pid.isdecimal() else 0
        self._readiness.on_ready(link.hostname, version)
        self._feed(events.HostFound(time.monotonic(), link.hostname))
        self._check_start()

    def _on_way_found(self, link: AgentLink, frame: Frame) -> None:
        if self._crossing is None:
            raise FrameError("an answer to an invitation that was not sent")
        if frame.kind is Kind.REACHED:
            self._crossing.ways.reached(link.hostname, number_of(frame.payload, 0))
        else:
            self._crossing.ways.gave_up(link.hostname)
        self._check_start()

    def _check_start(self) -> None:
        if self._all_ready:
            return
        decision = self._readiness.decide()
        now_s = time.monotonic()
        if decision.failure:
            self._feed(events.HostsFailed(now_s, decision.failure))
        elif decision.go:
            self._all_ready = True
            self._feed(events.HostsReady(now_s, decision.endpoint))

    def _give_up_start(self) -> None:
        links = {link.hostname: link for link in self._links}
        failure = self._readiness.give_up(
            self._start_timeout_s, lambda host: _because(links[host]) if host in links else ""
        )
        self._feed(events.HostsFailed(time.monotonic(), failure))
        self._abandon(only_missing=True)

    def _cross(self, crossing: Crossing, address: str, port: int) -> None:
        self._log(f"all hosts reach the store at {address} port {port}")
        crossing.on_chosen((address, port))
        for link in self._links:
            link.send(Kind.JOB, link.job.at(address, port).to_json())

    # -- output

    @property
    def _console(self) -> Console:
        return self._output.console

    def _relay(self, link: AgentLink, frame: Frame) -> None:
        stream = "stdout" if frame.kind is Kind.STDOUT else "stderr"
        self._rank_of(frame.worker)
        self._output.write(frame.worker, stream, frame.payload)
        # An agent that hears nothing lets its ranks wait.
        if link.owe(len(frame.payload)) and self._output.has_room():
            link.acknowledge()

    def _on_console_news(self) -> None:
        self._console.take_news()
        self._look_for_write_errors()
        if self._output.has_room():
            for link in self._links:
                link.acknowledge()

    def _look_for_write_errors(self) -> None:
        """A console that takes nothing more ends the job; a disk that is full only its files."""
        error = self._console.error()
        if error is not None and not self._silent:
            self._silent = True
            reason = f"cannot write the output of the ranks: {error.strerror or error}"
            gone = isinstance(error, BrokenPipeError)
            self._end(Outcome(128 + signal.SIGPIPE) if gone else Outcome(1, reason))
        error = self._output.file_error()
        if error is not None:
            self._disk_error = f"cannot write {error.filename}: {error.strerror or error}"
            self._output.give_up_files()
            self._announce(f"{self._disk_error}; nothing more is written to such files")

    def _finish_output(self) -> None:
        """Hands over the last lines, and waits for the console as long as it takes anything."""
        self._output.finish()
        well = self._policy.decide(self._state, events.HostsGone(time.monotonic())).state.outcome
        patience_s = PATIENCE_S if well == Outcome(0) else SHORT_PATIENCE_S
        if not self._silent and not self._console.wait(patience_s, self._interrupts):
            self._dropped += self._console.give_up()
        self._look_for_write_errors()
        if self._dropped and not self._silent:
            self._announce(f"{self._dropped} bytes of output are lost: nobody took them")
        if self._disk_error:
            self._announce(f"{FILES_INCOMPLETE}{self._disk_error}")


def _placed(jobs: Sequence[AgentJob]) -> dict[int, Placed]:
    return {
        worker.worker: Placed(worker.rank, job.hostname) for job in jobs for worker in job.workers
    }


def _signal_of(text: str) -> int:
    number = number_of(text, 0)
    return number if number in signal.valid_signals() else 0


def _because(link: AgentLink) -> str:
    lines = link.complaints()
    return "; it wrote:" + "".join(f"\n    {line}" for line in lines) if lines else ""


def _explain(link: AgentLink) -> str:
    return f"it ended{_because(link)}"
