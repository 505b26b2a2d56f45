"""The launcher's loop: starts the agents, relays output, ends the job at the first failure.

One thread, one selector, no polling: the loop sleeps until an agent reports, a signal comes or a
deadline passes. The phases follow one another; each of them but RUNNING has a deadline:

    STARTING  until every agent said that it runs, and all hosts agree on the way to the store
    RUNNING   until all ranks ended, or one failed
    SETTLING  a rank failed; the others get a moment to fail by themselves and say why
    STOPPING  the agents end their ranks (SIGTERM, then SIGKILL)
    KILLING   the agents were told to kill at once
"""

from __future__ import annotations

import enum
import os
import selectors
import signal
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from horovod.runner.early_exit import blame
from horovod.runner.failure import RankExit, first_failure, headline, report
from horovod.runner.frames import GRACE_S, Frame, FrameError, Kind
from horovod.runner.gathering import Gathering
from horovod.runner.link import AgentLink
from horovod.runner.summary import summarize

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

    from horovod.runner.connect_back import ConnectBack, Endpoint, Invitation
    from horovod.runner.output import Output
    from horovod.runner.plan import AgentJob

# From the first failure to the end of the job pass at most the sum of these, less than 10 s.
SETTLE_S = 2.0
STOP_S = GRACE_S + 1.0
KILL_S = 1.0
CLOSE_S = 0.5


class Phase(enum.IntEnum):
    """Where a job is; see the module."""

    STARTING = 0
    RUNNING = 1
    SETTLING = 2
    STOPPING = 3
    KILLING = 4


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


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        exit_code: for the launcher: 0, that of the first failure, or 128 + signal.
        message: what to tell the user; empty if all went well.
        failure: the rank that failed first, if it was a rank.
        summary: one line on what became of all ranks; empty if all went well.
    """

    exit_code: int
    message: str = ""
    failure: RankExit | None = None
    summary: str = ""

    @property
    def is_follow_up(self) -> bool:
        """Whether a rank failed that complains of another one."""
        return self.failure is not None and self.failure.is_follow_up


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
        alarm: tells when something elsewhere ends the job; None if nothing can.
        crossing: how the agents find the way to the store; None if the jobs say it.
        explain: why an agent that is gone did not stay, in one line.
        on_exit: called with the end of each rank that ends by itself, at once.
        on_outcome: called when it is decided how the job ends, before its ranks are stopped.
    """

    def __init__(
        self,
        jobs: Sequence[AgentJob],
        start_agent: Callable[[AgentJob], subprocess.Popen[bytes]],
        output: Output,
        *,
        start_timeout_s: float,
        log: Callable[[str], None],
        announce: Callable[[str], None],
        interrupts: int | None = None,
        alarm: Alarm | None = None,
        crossing: Crossing | None = None,
        explain: Callable[[AgentLink], str] | None = None,
        on_exit: Callable[[RankExit], None] | None = None,
        on_outcome: Callable[[Outcome], None] | None = None,
    ) -> None:
        self._jobs = jobs
        self._crossing = crossing
        self._explain = explain or _explain
        self._tell_exit = on_exit or (lambda ended: None)
        self._tell_outcome = on_outcome or (lambda outcome: None)
        ways = None if crossing is None else crossing.ways
        self._gathering = Gathering([job.hostname for job in jobs], ways)
        self._start_agent = start_agent
        self._output = output
        self._start_timeout_s = start_timeout_s
        self._log = log
        self._announce = announce
        self._interrupts = interrupts
        self._alarm = alarm
        self._selector = selectors.DefaultSelector()
        self._links: list[AgentLink] = []
        self._phase = Phase.STARTING
        self._deadline_s: float | None = None
        self._exits: list[RankExit] = []
        self._stopped: list[int] = []
        self._began_s = time.monotonic()
        self._any_started = False
        self._running = {rank_job.rank for job in jobs for rank_job in job.ranks}
        self._outcome: Outcome | None = None
        self._silent = False

    def run(self) -> Outcome:
        """Runs the job; returns when no process of it is left, or 10 s after a failure.

        Raises:
            BaseException: what a signal handler of the caller raised; the job has been ended.
        """
        try:
            self._enter(Phase.STARTING, self._start_timeout_s)
            if self._interrupts is not None:
                self._selector.register(self._interrupts, selectors.EVENT_READ)
            if self._alarm is not None:
                self._selector.register(self._alarm.descriptor, selectors.EVENT_READ, self._alarm)
            self._start_agents()
            self._loop()
            self._finish_output()
        except BaseException:
            self._end_after_exception()
            raise
        finally:
            for link in self._links:
                link.close(CLOSE_S)
            self._selector.close()
        outcome = self._outcome or self._decide() or Outcome(0)
        elapsed_s = time.monotonic() - self._began_s
        if outcome.exit_code == 0:
            self._log(f"the job ran {elapsed_s:.1f} s")
            return outcome
        failed_start = outcome.failure is not None and bool(outcome.failure.start_error)
        if not outcome.message or failed_start or not self._any_started:
            return outcome  # nothing ran, or nobody reads
        told = summarize(outcome.failure, self._exits, self._stopped, self._running, elapsed_s)
        return replace(outcome, summary=told)

    def _start_agents(self) -> None:
        for job in self._jobs:
            try:
                process = self._start_agent(job)
            except OSError as error:
                self._stop(Outcome(1, f"cannot start the agent of {job.hostname}: {error}"))
                return
            link = AgentLink(job, process, self._selector)
            self._links.append(link)
            self._log(f"the agent of {job.hostname} is process {link.pid}")
            if self._crossing is None:
                link.send(Kind.JOB, job.to_json())
            else:
                link.send(Kind.INVITATION, self._crossing.invitation.to_json())

    def _end_after_exception(self) -> None:
        """Ends the job; a second exception, from a second Ctrl-C, makes it quick."""
        try:
            self._stop(Outcome(1))
            self._loop()
        except BaseException:
            self._silent = True
            self._kill()
            self._loop()

    # -- the loop

    def _loop(self) -> None:
        while any(link.open for link in self._links):
            timeout_s = None
            if self._deadline_s is not None:
                timeout_s = max(0.0, self._deadline_s - time.monotonic())
            for key, _ in self._selector.select(timeout_s):
                if isinstance(key.data, AgentLink):
                    self._serve(key.data, key.fileobj)
                elif isinstance(key.data, Alarm):
                    self._selector.unregister(key.fd)
                    self._stop(key.data.cause())
                else:
                    self._on_interrupt(os.read(key.fd, 1)[0])
            if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
                self._on_deadline()

    def _serve(self, link: AgentLink, pipe: object) -> None:
        try:
            for frame in link.on_ready(pipe):
                self._on_frame(link, frame)
        except FrameError as error:
            self._stop(Outcome(1, f"the agent of {link.hostname} sent what is {error}"))
            link.abandon()
        if not link.open and not link.done:
            link.done = True
            self._on_lost(link)

    def _on_frame(self, link: AgentLink, frame: Frame) -> None:
        match frame.kind:
            case Kind.STDOUT | Kind.STDERR:
                self._relay(frame)
            case Kind.READY:
                self._on_ready(link, frame.payload.decode(errors="replace"))
            case Kind.REACHED | Kind.TRIED:
                self._on_way_found(link, frame)
            case Kind.STARTED:
                self._any_started = True
                pid = frame.payload.decode()
                self._log(f"rank {frame.rank} on {link.hostname} is process {pid}")
            case Kind.EXITED:
                self._on_exit(link, frame.rank, int(frame.payload))
            case Kind.NOT_STARTED:
                code, _, reason = frame.payload.decode(errors="replace").partition(" ")
                self._on_exit(link, frame.rank, int(code), reason)
            case Kind.STOPPING:
                reason = frame.payload.decode(errors="replace")
                if self._phase is Phase.STARTING:
                    self._on_bad_host(link, reason)
                else:
                    self._stop(Outcome(1, f"the agent of {link.hostname} ends its ranks: {reason}"))
            case Kind.NOTE:
                self._log(f"{link.hostname}: {frame.payload.decode(errors='replace')}")
            case Kind.DONE:
                link.done = True
            case _:
                raise FrameError(f"not for a launcher: {frame.kind.name}")

    # -- the start

    def _on_ready(self, link: AgentLink, text: str) -> None:
        link.ready = True
        self._gathering.on_ready(link.hostname, text.partition(" ")[2])
        self._check_start()

    def _on_way_found(self, link: AgentLink, frame: Frame) -> None:
        if self._crossing is None:
            raise FrameError("an answer to an invitation that was not sent")
        if frame.kind is Kind.REACHED:
            self._crossing.ways.reached(link.hostname, int(frame.payload))
        else:
            self._crossing.ways.gave_up(link.hostname)
        self._check_start()

    def _on_bad_host(self, link: AgentLink, reason: str) -> None:
        self._gathering.on_failed(link.hostname, reason)
        self._log(f"{link.hostname}: {reason}")
        self._check_start()

    def _check_start(self) -> None:
        if self._phase is not Phase.STARTING:
            return
        decision = self._gathering.decide()
        if decision.failure:
            self._stop(Outcome(1, decision.failure))
        elif decision.go:
            if self._crossing is not None and decision.endpoint is not None:
                self._cross(self._crossing, *decision.endpoint)
            self._enter(Phase.RUNNING, None)

    def _cross(self, crossing: Crossing, address: str, port: int) -> None:
        self._log(f"all hosts reach the store at {address} port {port}")
        crossing.on_chosen((address, port))
        for link in self._links:
            link.send(Kind.JOB, link.job.at(address, port).to_json())

    def _on_lost(self, link: AgentLink) -> None:
        if self._phase is Phase.STARTING:
            self._on_bad_host(link, self._explain(link))
            return
        lost = Outcome(1, f"the agent of {link.hostname} is gone: {self._explain(link)}")
        known = self._decide()
        # That ranks elsewhere complain of lost peers only tells the same from another side.
        follows = known is None or known.failure is None or known.is_follow_up
        self._stop(lost if follows else known)

    def _relay(self, frame: Frame) -> None:
        stream = "stdout" if frame.kind is Kind.STDOUT else "stderr"
        self._writing(lambda: self._output.write(frame.rank, stream, frame.payload))

    def _finish_output(self) -> None:
        self._writing(self._output.finish)

    def _writing(self, write: Callable[[], None]) -> None:
        """Writes output; a console or disk that takes nothing more ends the job."""
        if self._silent:
            return
        try:
            write()
        except BrokenPipeError:
            self._silent = True
            self._stop(Outcome(128 + signal.SIGPIPE))
        except OSError as error:
            self._silent = True
            self._stop(Outcome(1, f"cannot write the output of the ranks: {error}"))

    # -- decisions

    def _on_exit(self, link: AgentLink, rank: int, code: int, start_error: str = "") -> None:
        self._running.discard(rank)
        tail = self._output.stderr_tail(rank)
        ended = RankExit(rank, link.hostname, code, time.monotonic(), tail, start_error)
        self._log(f"rank {rank} on {link.hostname} ended with code {ended.exit_code}")
        if self._phase >= Phase.STOPPING:
            self._stopped.append(rank)  # it ended because it was told to
            return
        self._exits.append(ended)
        self._tell_exit(ended)
        if code != 0 and self._phase < Phase.SETTLING:
            self._enter(Phase.SETTLING, SETTLE_S)
        if self._phase is Phase.SETTLING and (start_error or not self._running):
            self._stop(self._decide())

    def _decide(self) -> Outcome | None:
        failure = first_failure(self._exits)
        if failure is None:
            return None
        running = {
            rank_job.rank: job.hostname
            for job in self._jobs
            for rank_job in job.ranks
            if rank_job.rank in self._running
        }
        message = blame(self._exits) or report(failure, running)
        return Outcome(failure.exit_code, message, failure)

    def _on_deadline(self) -> None:
        match self._phase:
            case Phase.STARTING:
                self._on_start_timeout()
            case Phase.SETTLING:
                self._stop(self._decide())
            case Phase.STOPPING:
                self._kill()
            case Phase.KILLING:
                for link in self._links:
                    link.done = True
                    link.abandon()
            case Phase.RUNNING:
                self._deadline_s = None

    def _on_start_timeout(self) -> None:
        links = {link.hostname: link for link in self._links}
        failure = self._gathering.give_up(
            self._start_timeout_s, lambda host: _because(links[host]) if host in links else ""
        )
        self._stop(Outcome(1, failure))
        for link in self._links:
            if not link.ready:
                link.abandon()

    def _on_interrupt(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if self._phase >= Phase.STOPPING:
            self._log(f"{name} again: killing the ranks")
            self._kill()
        else:
            self._stop(Outcome(128 + signum, f"stopped by {name}"))

    def _stop(self, outcome: Outcome | None) -> None:
        """Ends the job; the first outcome counts."""
        if self._phase >= Phase.STOPPING:
            return
        self._outcome = outcome
        failure = None if outcome is None else outcome.failure
        if failure is not None and not failure.start_error and self._running:
            others = ", ".join(map(str, sorted(self._running)[:8]))
            self._announce(f"{headline(failure)}; stopping rank {others}{_more(self._running)}")
        self._enter(Phase.STOPPING, STOP_S)
        self._log("stopping the ranks")
        for link in self._links:
            link.send(Kind.STOP)
        if outcome is not None:
            self._tell_outcome(outcome)

    def _kill(self) -> None:
        if self._phase < Phase.KILLING:
            self._enter(Phase.KILLING, KILL_S)
            for link in self._links:
                link.send(Kind.KILL)

    def _enter(self, phase: Phase, timeout_s: float | None) -> None:
        self._phase = phase
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s


def _more(ranks: set[int]) -> str:
    return f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""


def _because(link: AgentLink) -> str:
    lines = link.complaints()
    return "; it wrote:" + "".join(f"\n    {line}" for line in lines) if lines else ""


def _explain(link: AgentLink) -> str:
    return f"it ended{_because(link)}"
