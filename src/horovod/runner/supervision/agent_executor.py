"""Carries out the commands of a policy by agents: one on each host, which starts workers there."""

from __future__ import annotations

import selectors
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import horovod
from horovod._rendezvous.bounds import one_line
from horovod.runner.placing.jax_environment import with_framework_variables
from horovod.runner.protocol.frames import STOP_SOON, FrameError, Kind, Reached, number_of
from horovod.runner.supervision import commands, events
from horovod.runner.supervision.agents import what_it_wrote
from horovod.runner.supervision.failure import RankExit
from horovod.runner.supervision.link import AgentLink
from horovod.runner.supervision.outcome import Outcome
from horovod.runner.supervision.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.runner.output.output import Output
    from horovod.runner.protocol.frames import Frame
    from horovod.runner.protocol.invitation import Endpoint
    from horovod.runner.supervision.agents import Agents, Reporting
    from horovod.runner.supervision.commands import Command
    from horovod.runner.supervision.events import Event

CLOSE_S = 1.0


class AgentExecutor:
    """Starts agents, sends them what a policy decides, and reports what they say.

    Args:
        agents: how they are started.
        output: takes what the ranks print.
        reporting: who hears what happens.
    """

    def __init__(self, agents: Agents, output: Output, reporting: Reporting) -> None:
        self._agents = agents
        self._reporting = reporting
        self._relay = Relay(output, reporting.announce, self._end)
        self._links: dict[str, AgentLink] = {}  # by host
        self._released: list[AgentLink] = []  # of whose end nobody wants to hear
        self._parted: list[AgentLink] = []  # whose processes may still be about to end
        self._ranks: dict[int, int] = {}  # of all workers ever: what one leaves may still write
        self._started: dict[int, commands.StartWorker] = {}  # of those started alone that live
        self._left_running = ""

    # -- what the supervisor asks

    def begin(self, selector: selectors.BaseSelector, report: Callable[[Event], None]) -> None:
        """Get ready for commands."""
        self._selector, self._report = selector, report
        console = self._relay.output.console
        selector.register(console, selectors.EVENT_READ, self._on_console_news)

    def is_busy(self) -> bool:
        """Return whether an agent is left."""
        return bool(self._links or self._released)

    def wait_s(self) -> float | None:
        """Print what has waited long enough for the end of its line; return when to look again."""
        return self._relay.output.show_prompts()

    def finish(self, outcome: Outcome, interrupts: int | None) -> Outcome:
        """Hand over the last lines of output."""
        self.close()
        outcome = self._relay.finish(outcome, interrupts)
        return replace(outcome, left_running=self._left_running)

    def close(self) -> None:
        """Let go of all agents, after their end if that comes in time."""
        for link in self._open_links():
            self._part(link)
        for link in self._parted:
            link.exit_code(CLOSE_S)
        self._parted.clear()

    def execute(self, command: Command) -> None:
        """Carry out a command. What is gone with its host gets none."""
        match command:
            case commands.UseHost():
                self._use(command.host, command.slots)
            case commands.SendJob():
                self._send_job(command.host, command.endpoint)
            case commands.ChooseEndpoint():
                self._choose(command.endpoint)
            case commands.ReleaseHost():
                self._release(command.host)
            case commands.GiveUpHost():
                self._give_up(command.host, command.reason)
            case commands.StartWorker():
                self._start(command)
            case commands.EndWorker():
                if command.worker in self._started:
                    host = self._started[command.worker].host
                    self._send(host, Kind.END_WORKER, command.how.to_bytes(), command.worker)
            case commands.EndAll():
                for link in self._open_links():
                    link.send(Kind.STOP, command.how.to_bytes())
            case commands.KillAll():
                for link in self._open_links():
                    link.send(Kind.KILL)
            case commands.Abandon():
                for link in self._open_links():
                    link.abandon()
                    self._part(link)
            case commands.Announce():
                self._reporting.announce(command.line)
            case commands.ReportExit():
                self._reporting.on_exit(command.ended)
            case commands.ReportOutcome():
                self._reporting.on_outcome(command.outcome)
            case _ if self._agents.store is not None:
                self._agents.store.execute(command, self._report)

    # -- hosts

    def _open_links(self) -> list[AgentLink]:
        return [*self._links.values(), *self._released]

    def _send(self, host: str, kind: Kind, payload: bytes = b"", worker: int = -1) -> None:
        if host in self._links:
            self._links[host].send(kind, payload, worker)

    def _use(self, host: str, slots: int) -> None:
        try:
            job = self._agents.job_of(host, slots)
            link = AgentLink(job, self._agents.start(job), self._selector, self._serve)
        except OSError as error:
            self._lose(host, f"cannot start its agent: {error}")
            return
        self._links[host] = link
        self._ranks.update({worker.worker: worker.rank for worker in job.workers})
        where = f"is process {link.pid}" if link.pid else "runs there"
        self._reporting.log(f"the agent of {host} {where}")
        if self._agents.invitation is None:
            link.send(Kind.JOB, job.to_json())
        else:
            link.send(Kind.INVITATION, self._agents.invitation.to_json())

    def _send_job(self, host: str, endpoint: Endpoint) -> None:
        if host in self._links:
            address, port = endpoint
            self._reporting.log(f"{host} reaches the store at {address} port {port}")
            self._send(host, Kind.JOB, self._links[host].job.at(address, port).to_json())

    def _choose(self, endpoint: Endpoint) -> None:
        address, port = endpoint
        self._reporting.log(f"all hosts reach the store at {address} port {port}")
        self._agents.on_chosen(endpoint)
        jobs = {host: link.job.at(address, port) for host, link in self._links.items()}
        leading = [link for link in self._links.values() if link.job.has_rank_0]
        master = leading[0].masters.get(endpoint) if leading else None
        for host, job in jobs.items():
            told = with_framework_variables(job, *master) if master and master[1] else job
            self._send(host, Kind.JOB, told.to_json())

    def _release(self, host: str) -> None:
        if host in self._links:
            link = self._links.pop(host)
            self._released.append(link)
            link.send(Kind.STOP, STOP_SOON.to_bytes())

    def _give_up(self, host: str, reason: str) -> None:
        if host in self._links:
            link = self._links[host]
            reason = f"{reason}{what_it_wrote(link)}"
            link.abandon()
            self._part(link)
            self._lose(host, reason)

    def _lose(self, host: str, reason: str) -> None:
        self._report(events.HostLost(time.monotonic(), host, reason))

    def _part(self, link: AgentLink) -> None:
        """Forget an agent that no longer speaks; its process is about to end."""
        if link in self._released:
            self._released.remove(link)
        else:
            del self._links[link.hostname]
        link.close()
        self._parted = [other for other in self._parted if other.exit_code(0.0) is None] + [link]
        if link.hostname not in self._links:
            stay = {n: each for n, each in self._started.items() if each.host != link.hostname}
            self._started = stay

    def _end(self, outcome: Outcome) -> None:
        """End the job for a reason that lies outside of it."""
        self._report(events.EndAsked(time.monotonic(), outcome))

    # -- workers

    def _start(self, command: commands.StartWorker) -> None:
        # As long as it lives, its output appears under the rank that was free when it started.
        taken = {self._ranks[worker] for worker in self._started}
        rank = min(set(range(len(taken) + 1)) - taken)
        assert self._agents.worker_of is not None
        host, number = command.host, command.worker
        worker = self._agents.worker_of(host, number, command.identity, command.slot, rank)
        self._started[number], self._ranks[number] = command, rank
        self._relay.output.place({number: rank})
        self._send(host, Kind.START_WORKER, worker.to_json())

    def _rank_of(self, worker: int) -> int:
        """Return the rank of a worker that an agent names.

        Raises:
            FrameError: the job has no such worker.
        """
        if worker not in self._ranks:
            raise FrameError(f"about worker {worker}, which this job does not have")
        return self._ranks[worker]

    # -- what agents say

    def _on_console_news(self, console: object) -> None:
        self._relay.on_console_news(self._open_links())

    def _serve(self, link: AgentLink, pipe: object) -> None:
        if link.closed:
            return  # after the selector had found both of its pipes ready
        try:
            for frame in link.on_ready(pipe):
                self._on_frame(link, frame)
        except FrameError as error:
            self._end(Outcome(1, f"the agent of {link.hostname} sent what is {error}"))
            link.abandon()
        if not (link.open or link.closed):
            self._on_end_of(link)

    def _on_end_of(self, link: AgentLink) -> None:
        is_released = link in self._released
        reason = "" if link.done or is_released else self._agents.explain(link)
        self._part(link)
        if link.done and not is_released:
            self._report(events.HostDone(time.monotonic(), link.hostname))
        elif not is_released:
            self._lose(link.hostname, reason)

    def _on_frame(self, link: AgentLink, frame: Frame) -> None:
        now = time.monotonic()
        match frame.kind:
            case Kind.STDOUT | Kind.STDERR:
                self._rank_of(frame.worker)
                stream = "stdout" if frame.kind is Kind.STDOUT else "stderr"
                self._relay.write(link, frame.worker, stream, frame.payload)
            case Kind.READY:
                self._on_ready(link, _text_of(frame))
            case Kind.REACHED | Kind.TRIED:
                self._on_answer(link, frame)
            case Kind.STARTED:
                rank, pid = self._rank_of(frame.worker), number_of(frame.payload, 0)
                self._reporting.log(f"rank {rank} on {link.hostname} is process {pid}")
                self._report(events.WorkerStarted(now, frame.worker))
            case Kind.EXITED:
                self._on_exit(link, frame.worker, number_of(frame.payload))
            case Kind.NOT_STARTED:
                code, _, reason = frame.payload.decode(errors="replace").partition(" ")
                self._on_exit(link, frame.worker, number_of(code), one_line(reason))
            case Kind.STOPPING:
                signum, _, reason = _text_of(frame).partition(" ")
                self._report(events.HostStopping(now, link.hostname, reason, _signal_of(signum)))
            case Kind.NOTE:
                self._reporting.log(f"{link.hostname}: {_text_of(frame, 1000)}")
            case Kind.LEFT_RUNNING:
                left = f"{_text_of(frame, 1000)} on {link.hostname}"
                all_left = filter(None, [self._left_running, left])
                self._left_running = one_line(", ".join(all_left), 1000)
                self._reporting.log(f"processes that the ranks left running are ended: {left}")
            case Kind.DROPPED:
                self._relay.num_dropped += number_of(frame.payload, 0, 2**62)
            case Kind.DONE:
                link.done = True
            case _:
                raise FrameError(f"not for a launcher: {frame.kind.name}")

    def _on_ready(self, link: AgentLink, text: str) -> None:
        pid, _, version = text.partition(" ")
        link.agent_pid = number_of(pid, 0) if pid.isdecimal() else 0
        if link in self._released:
            return
        if version and version != horovod.__version__:
            self._release(link.hostname)
            self._lose(
                link.hostname,
                f"it has Horovod {version}, but this machine has {horovod.__version__}; install "
                "the same version on all hosts",
            )
            return
        knows_store = self._agents.invitation is None
        self._report(events.HostFound(time.monotonic(), link.hostname, knows_store))

    def _on_answer(self, link: AgentLink, frame: Frame) -> None:
        invitation = self._agents.invitation
        if invitation is None:
            raise FrameError("an answer to an invitation that was not sent")
        if link in self._released:
            return
        endpoints, now = invitation.endpoints, time.monotonic()
        if frame.kind is Kind.TRIED:
            self._report(events.HostTried(now, link.hostname, endpoints))
            return
        reached = Reached.from_bytes(frame.payload)
        if reached.endpoint >= len(endpoints):
            raise FrameError(f"no endpoint of the invitation: {frame.payload[:80]!r}")
        endpoint = endpoints[reached.endpoint]
        link.masters[endpoint] = reached.own_address, reached.free_port
        self._report(events.HostReached(now, link.hostname, endpoint))

    def _on_exit(self, link: AgentLink, worker: int, code: int, start_error: str = "") -> None:
        now, rank = time.monotonic(), self._rank_of(worker)
        tail = self._relay.output.stderr_tail(worker)
        # A process that was killed had no time to report.
        report = self._reporting.report_of(worker) if code > 0 and not start_error else None
        if worker in self._started:
            self._forget(worker)
        ended = RankExit(rank, link.hostname, code, now, tail, start_error, worker, report)
        self._reporting.log(f"rank {rank} on {link.hostname} ended with code {ended.exit_code}")
        self._report(events.WorkerExited(now, worker, ended))

    def _forget(self, worker: int) -> None:
        """Keep nothing of a worker that has ended: an elastic job may have them without end."""
        self._relay.output.forget(worker)
        identity = self._started.pop(worker).identity
        if self._agents.store is not None:
            self._agents.store.forget(worker, identity)


def _text_of(frame: Frame, most: int = 500) -> str:
    return one_line(frame.payload.decode(errors="replace"), most)


def _signal_of(text: str) -> int:
    number = number_of(text, 0)
    return number if number in signal.valid_signals() else 0
