"""The launcher's loop: starts the agents, relays output, ends the job at the first failure.

One thread, one selector, no polling: the loop sleeps until an agent reports, a signal comes or a
deadline passes. The phases follow one another; each of them but RUNNING has a deadline:

    STARTING  until every agent said that it runs, and all hosts agree on the way to the store
    RUNNING   until all ranks ended, or one failed
    SETTLING  a rank failed; the others get a moment to fail by themselves and say why
    STOPPING  the agents end their ranks (SIGTERM or SIGINT, then SIGKILL)
    KILLING   the agents were told to kill at once

A console or a disk never holds up the loop: others write, and the agents hear of what was taken.
"""

from __future__ import annotations

import enum
import os
import selectors
import signal
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from horovod.runner.output.console import PATIENCE_S, SHORT_PATIENCE_S
from horovod.runner.placing.plan import DEFAULT_GRACE_S
from horovod.runner.protocol.frames import STOP_SOON, Frame, FrameError, Kind, Stop
from horovod.runner.supervision.early_exit import blame
from horovod.runner.supervision.failure import RankExit, cause, first_failure, headline, last_words
from horovod.runner.supervision.gathering import Gathering
from horovod.runner.supervision.link import AgentLink
from horovod.runner.supervision.summary import summarize

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Sequence

    from horovod.runner.output.console import Console
    from horovod.runner.output.output import Output
    from horovod.runner.placing.plan import AgentJob
    from horovod.runner.protocol.invitation import Endpoint, Invitation
    from horovod.runner.supervision.connect_back import ConnectBack

# From the first failure to the end of the job pass at most GRACE_S and the sum of these, less than
# 10 s.
SETTLE_S = 2.0
STOP_S = 1.0  # beyond the grace of the ranks
KILL_S = 1.0
CLOSE_S = 1.0
# What came so few lines ago can still be seen, and is not printed once more.
SCREEN_LINES = 30


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
        details: the last lines of the rank that failed first, to follow the message.
        details_are_above: whether the console shows them a few lines further up.
        failure: the rank that failed first, if it was a rank.
        summary: one line on what became of all ranks; empty if all went well.
        stop_signal: what the ranks got from the user or the system, who let them have their time;
            0 if it was not one of these that ended the job.
    """

    exit_code: int
    message: str = ""
    failure: RankExit | None = None
    summary: str = ""
    stop_signal: int = 0
    details: str = ""
    details_are_above: bool = False

    @property
    def report(self) -> str:
        """The message and its details."""
        return self.message + self.details

    @property
    def is_follow_up(self) -> bool:
        """Whether a rank failed that complains of another one."""
        return self.failure is not None and self.failure.is_follow_up


def stopped_by(signum: int) -> Outcome:
    """How a job ends whose launcher gets a signal. A terminal that closes is no Ctrl-C."""
    passed_on = signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM
    name = signal.Signals(signum).name
    return Outcome(128 + signum, f"stopped by {name}", stop_signal=passed_on)


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
        wakeups: int | None = None,
        alarm: Alarm | None = None,
        crossing: Crossing | None = None,
        explain: Callable[[AgentLink], str] | None = None,
        grace_s: float = DEFAULT_GRACE_S,
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
        self._wakeups = wakeups
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
        self._grace_s = grace_s
        self._overdue: list[int] = []
        self._dropped = 0
        self._disk_error = ""

    def run(self) -> Outcome:
        """Runs the job; returns when no process of it is left, or 10 s after a failure.

        Raises:
            BaseException: what a signal handler of the caller raised; the job has been ended.
        """
        try:
            self._enter(Phase.STARTING, self._start_timeout_s)
            if self._interrupts is not None:
                self._selector.register(self._interrupts, selectors.EVENT_READ)
            if self._wakeups is not None:
                self._selector.register(self._wakeups, selectors.EVENT_READ)
            if self._alarm is not None:
                self._selector.register(self._alarm.descriptor, selectors.EVENT_READ, self._alarm)
            self._selector.register(self._console, selectors.EVENT_READ, self._console)
            self._start_agents()
            self._loop()
            self._let_go()
            self._finish_output()
        except BaseException as error:
            self._end_after_exception(error)
            raise
        finally:
            self._let_go()
            self._selector.close()
        outcome = self._with_overdue(self._outcome or self._decide() or Outcome(0))
        elapsed_s = time.monotonic() - self._began_s
        if outcome.exit_code == 0:
            self._log(f"the job ran for {elapsed_s:.1f} s")
            return outcome
        failed_start = outcome.failure is not None and bool(outcome.failure.start_error)
        if not outcome.message or failed_start or not self._any_started:
            return outcome  # nothing ran, or nobody reads
        told = summarize(outcome.failure, self._exits, self._stopped, self._running, elapsed_s)
        failure = outcome.failure
        near = failure is not None and self._output.lines_since(failure.rank) <= SCREEN_LINES
        return replace(outcome, summary=told, details_are_above=near and not self._dropped)

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

    def _end_after_exception(self, error: BaseException) -> None:
        """Ends the job; a second exception, from a second Ctrl-C, makes it quick."""
        signum = 0
        if isinstance(error, KeyboardInterrupt):
            signum = signal.SIGINT
        elif isinstance(error, SystemExit):  # as handlers of SIGTERM raise it
            signum = signal.SIGTERM
        try:
            self._stop(Outcome(1, stop_signal=signum))
            self._loop()
            self._let_go()
            self._finish_output()
        except BaseException:
            self._silent = True
            self._kill()
            self._loop()

    def _let_go(self) -> None:
        for link in self._links:
            link.close(CLOSE_S)
        self._links.clear()

    # -- the loop

    def _loop(self) -> None:
        while any(link.open for link in self._links):
            timeout_s = self._output.show_prompts()
            if self._deadline_s is not None:
                left_s = max(0.0, self._deadline_s - time.monotonic())
                timeout_s = left_s if timeout_s is None else min(left_s, timeout_s)
            for key, _ in self._selector.select(timeout_s):
                if isinstance(key.data, AgentLink):
                    self._serve(key.data, key.fileobj)
                elif isinstance(key.data, Alarm):
                    self._selector.unregister(key.fd)
                    self._stop(key.data.cause())
                elif key.data is self._console:
                    self._on_console_news()
                elif key.fd == self._wakeups:
                    os.read(key.fd, 64)  # the handler has run, and raised nothing
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
                self._relay(link, frame)
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
                self._on_agent_stopping(link, frame.payload.decode(errors="replace"))
            case Kind.NOTE:
                self._log(f"{link.hostname}: {frame.payload.decode(errors='replace')}")
            case Kind.DROPPED:
                self._dropped += int(frame.payload)
            case Kind.DONE:
                link.done = True
            case _:
                raise FrameError(f"not for a launcher: {frame.kind.name}")

    def _on_agent_stopping(self, link: AgentLink, text: str) -> None:
        signum, _, reason = text.partition(" ")
        if self._phase is Phase.STARTING:
            self._on_bad_host(link, reason)
            return
        message = f"the agent of {link.hostname} ends its ranks: {reason}"
        self._stop(Outcome(1, message, stop_signal=int(signum)))

    # -- the start

    def _on_ready(self, link: AgentLink, text: str) -> None:
        link.ready = True
        pid, _, version = text.partition(" ")
        link.agent_pid = int(pid) if pid.isdigit() else 0
        self._gathering.on_ready(link.hostname, version)
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

    # -- output

    @property
    def _console(self) -> Console:
        return self._output.console

    def _relay(self, link: AgentLink, frame: Frame) -> None:
        stream = "stdout" if frame.kind is Kind.STDOUT else "stderr"
        self._output.write(frame.rank, stream, frame.payload)
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
            self._stop(Outcome(128 + signal.SIGPIPE) if gone else Outcome(1, reason))
        error = self._output.file_error()
        if error is not None:
            self._disk_error = f"cannot write {error.filename}: {error.strerror or error}"
            self._output.give_up_files()
            self._announce(f"{self._disk_error}; nothing more is written to such files")

    def _finish_output(self) -> None:
        """Hands over the last lines, and waits for the console as long as it takes anything."""
        self._output.finish()
        well = self._outcome is None and self._decide() is None
        patience_s = PATIENCE_S if well else SHORT_PATIENCE_S
        if not self._silent and not self._console.wait(patience_s, self._interrupts):
            self._dropped += self._console.give_up()
        self._look_for_write_errors()
        if self._dropped and not self._silent:
            self._announce(f"{self._dropped} bytes of output are lost: nobody took them")
        if self._disk_error:
            self._announce(f"the files of the output are not complete: {self._disk_error}")

    # -- decisions

    def _on_exit(self, link: AgentLink, rank: int, code: int, start_error: str = "") -> None:
        self._running.discard(rank)
        tail = self._output.stderr_tail(rank)
        ended = RankExit(rank, link.hostname, code, time.monotonic(), tail, start_error)
        self._log(f"rank {rank} on {link.hostname} ended with code {ended.exit_code}")
        if self._phase >= Phase.STOPPING:
            self._stopped.append(rank)  # it ended because it was told to
            if self._phase is Phase.STOPPING and code == -signal.SIGKILL:
                self._overdue.append(rank)
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
        if message := blame(self._exits):
            return Outcome(failure.exit_code, message, failure)
        message, details = cause(failure, running), last_words(failure)
        return Outcome(failure.exit_code, message, failure, details=details)

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
        if self._phase < Phase.STOPPING:
            self._stop(stopped_by(signum))
            return
        name = signal.Signals(signum).name
        outcome = self._outcome
        if signum != signal.SIGINT and outcome is not None and outcome.stop_signal:
            self._log(f"{name}: the ranks are ending already")  # systems may send it more than once
            return
        self._log(f"{name} again: killing the ranks")
        self._kill()

    def _stop(self, outcome: Outcome | None) -> None:
        """Ends the job; the first outcome counts."""
        if self._phase >= Phase.STOPPING:
            return
        self._outcome = outcome
        failure = None if outcome is None else outcome.failure
        if failure is not None and not failure.start_error and self._running:
            self._announce(f"{headline(failure)}; stopping {_named(self._running)}")
        how = STOP_SOON
        if outcome is not None and outcome.stop_signal:
            how = Stop(outcome.stop_signal, self._grace_s)
            if outcome.stop_signal == signal.SIGINT and self._running:
                self._announce(
                    f"the ranks have {self._grace_s:g} s to end; Ctrl-C again ends them at once"
                )
        self._enter(Phase.STOPPING, how.grace_s + STOP_S)
        self._log("stopping the ranks")
        for link in self._links:
            link.send(Kind.STOP, how.to_bytes())
        if outcome is not None:
            self._tell_outcome(outcome)

    def _with_overdue(self, outcome: Outcome) -> Outcome:
        """Adds who had to be killed after a signal, so that the user may give it more time."""
        if not outcome.stop_signal or not outcome.message or not self._overdue:
            return outcome
        were = "were" if len(self._overdue) > 1 else "was"
        told = (
            f"{outcome.message}; {_named(self._overdue)} did not end within "
            f"{self._grace_s:g} s (--grace) and {were} killed"
        )
        return replace(outcome, message=told)

    def _kill(self) -> None:
        if self._phase < Phase.KILLING:
            self._enter(Phase.KILLING, KILL_S)
            for link in self._links:
                link.send(Kind.KILL)

    def _enter(self, phase: Phase, timeout_s: float | None) -> None:
        self._phase = phase
        self._deadline_s = None if timeout_s is None else time.monotonic() + timeout_s


def _named(ranks: Collection[int]) -> str:
    """Such as "rank 3", "ranks 0, 2" or "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"."""
    names = ", ".join(map(str, sorted(ranks)[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {names}{more}"


def _because(link: AgentLink) -> str:
    lines = link.complaints()
    return "; it wrote:" + "".join(f"\n    {line}" for line in lines) if lines else ""


def _explain(link: AgentLink) -> str:
    return f"it ended{_because(link)}"
