"""The launcher's loop of a job whose hosts and workers come and go."""

from __future__ import annotations

import selectors
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import horovod
from horovod.errors import StartError
from horovod.runner.protocol.frames import STOP_SOON, Frame, FrameError, Kind, number_of
from horovod.runner.supervision import events
from horovod.runner.supervision.elastic import events as elastic
from horovod.runner.supervision.elastic.policy import Going
from horovod.runner.supervision.fixed import Placed
from horovod.runner.supervision.outcome import Outcome
from horovod.runner.supervision.supervisor import CLOSE_S, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._job.job import Job
    from horovod._job.membership import Membership
    from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
    from horovod.runner.protocol.invitation import Endpoint, Invitation
    from horovod.runner.supervision.events import Command
    from horovod.runner.supervision.link import AgentLink
    from horovod.runner.supervision.news import News


@dataclass(frozen=True)
class Fleet:
    """What an elastic job is made of.

    Attributes:
        job: publishes generations.
        news: brings what discovery finds and what workers tell.
        job_of: what the agent of a host with so many slots is told.
        worker_of: what is started; takes the host, the number, the identity, the slot and the rank
            under which its output appears.
        invitation: how hosts find the way to the store; None if their jobs say it.
        published: hears of each generation, once it is in the store.
    """

    job: Job
    news: News
    job_of: Callable[[str, int], AgentJob]
    worker_of: Callable[[str, int, str, int, int], WorkerJob]
    invitation: Invitation | None = None
    published: Callable[[Membership], None] = lambda _: None


class ElasticSupervisor(Supervisor):
    """Runs one elastic job from start to end.

    Args:
        fleet: what the job is made of.
        more: see :class:`Supervisor`; ``policy`` decides.
    """

    def __init__(self, fleet: Fleet, **more: Any) -> None:
        super().__init__([], **more)
        self._fleet = fleet
        self._stopped = False
        self._parted: list[AgentLink] = []  # whose processes may still be about to end
        # The hosts whose agents have found the way to the store.
        self._ways: set[AgentLink] = set()
        self._ranks: dict[int, int] = {}  # of the workers that live

    def _begin(self) -> None:
        self._selector.register(self._fleet.news, selectors.EVENT_READ, self._fleet.news)

    def _goes_on(self) -> bool:
        return super()._goes_on() or (not self._stopped and isinstance(self._state, Going))

    def _execute(self, command: Command) -> None:
        match command:
            case elastic.UseHost():
                self._use(command.host, command.slots)
            case elastic.ReleaseHost():
                self._release(self._link_of(command.host))
            case elastic.StartOn():
                self._start_on(command)
            case elastic.Publish():
                self._tell(lambda: self._publish(command.membership))
            case elastic.BreakUp():
                self._tell(lambda: self._fleet.job.break_up(command.text))
            case elastic.TellLoss():
                self._tell(lambda: self._fleet.job.tell_loss(command.generation, command.text))
            case elastic.Dismiss():
                self._tell(lambda: self._fleet.job.dismiss(command.identity, command.text))
            case events.EndWorker() if not self._has_link(self._placed[command.worker].hostname):
                return  # it ends with its host
            case events.EndAll() | events.KillAll() | events.Abandon():
                self._stopped = True
                super()._execute(command)
            case _:
                super()._execute(command)

    def _let_go(self) -> None:
        super()._let_go()
        for link in self._parted:
            link.exit_code(CLOSE_S)
        self._parted.clear()

    # -- hosts

    def _use(self, host: str, slots: int) -> None:
        try:
            self._link_agent(self._fleet.job_of(host, slots))
        except OSError as error:
            reason = f"cannot start its agent: {error}"
            self._fleet.news.put(events.HostLost(time.monotonic(), host, reason))

    def _brief(self, link: AgentLink) -> None:
        invitation = self._fleet.invitation
        if invitation is None:
            self._ways.add(link)
            link.send(Kind.JOB, link.job.to_json())
        else:
            link.send(Kind.INVITATION, invitation.to_json())

    def _release(self, link: AgentLink) -> None:
        """Ends an agent of which nobody wants to hear more."""
        link.released = True
        link.send(Kind.STOP, STOP_SOON.to_bytes())

    def _has_link(self, host: str) -> bool:
        return any(link.hostname == host and not link.released for link in self._links)

    def _link_of(self, host: str) -> AgentLink:
        return next(link for link in self._links if link.hostname == host and not link.released)

    def _on_end_of(self, link: AgentLink) -> None:
        reason = "its agent has ended" if link.done else ""
        reason = reason or ("" if link.released else self._explain(link))
        released, link.done = link.released, True
        self._links.remove(link)
        self._parted = [each for each in self._parted if each.exit_code(0.0) is None] + [link]
        self._ways.discard(link)
        link.close(0.0)
        for worker, placed in self._placed.items():
            if placed.hostname == link.hostname and not released:
                self._ranks.pop(worker, None)
        if not released:
            self._feed(events.HostLost(time.monotonic(), link.hostname, reason))

    def _on_ready(self, link: AgentLink, text: str) -> None:
        link.ready = True
        pid, _, version = text.partition(" ")
        link.agent_pid = number_of(pid, 0) if pid.isdecimal() else 0
        if version and version != horovod.__version__:
            self._give_up(
                link,
                f"it has Horovod {version}, but this machine has {horovod.__version__}; install "
                "the same version on all hosts",
            )
        elif link in self._ways:
            self._found(link)

    def _on_way_found(self, link: AgentLink, frame: Frame) -> None:
        invitation = self._fleet.invitation
        if link in self._ways or link.released or invitation is None:
            return
        if frame.kind is Kind.REACHED:
            # Each host takes the first way that it finds: others may come that need another one.
            address, port = _endpoint(invitation, frame)
            self._log(f"{link.hostname} reaches the store at {address} port {port}")
            self._ways.add(link)
            link.send(Kind.JOB, link.job.at(address, port).to_json())
            self._found(link)
            return
        tried = ", ".join(address for address, _ in invitation.endpoints)
        self._give_up(
            link,
            f"it reaches no address of this machine: tried {tried}; does a firewall let "
            "connections to this machine pass? Name the interface of the right network with "
            "--network-interfaces",
        )

    def _found(self, link: AgentLink) -> None:
        if link.ready and not link.released:
            self._feed(events.HostFound(time.monotonic(), link.hostname))

    def _give_up(self, link: AgentLink, reason: str) -> None:
        self._release(link)
        self._feed(events.HostLost(time.monotonic(), link.hostname, reason))

    # -- workers

    def _start_on(self, command: elastic.StartOn) -> None:
        # As long as it lives, its output appears under the rank that was free when it started.
        taken = set(self._ranks.values())
        rank = min(set(range(len(taken) + 1)) - taken)
        worker = self._fleet.worker_of(
            command.host, command.worker, command.identity, command.slot, rank
        )
        self._ranks[command.worker] = rank
        self._placed[command.worker] = Placed(rank, command.host)
        self._output.place({command.worker: rank})
        self._link_of(command.host).send(Kind.START_WORKER, worker.to_json())

    def _on_exit(self, link: AgentLink, worker: int, code: int, start_error: str = "") -> None:
        self._ranks.pop(worker, None)
        super()._on_exit(link, worker, code, start_error)

    def _publish(self, membership: Membership) -> None:
        self._fleet.job.publish(membership)
        self._fleet.published(membership)

    def _tell(self, action: Callable[[], object]) -> None:
        """Writes something into the store."""
        try:
            action()
        except StartError as error:
            self._end(Outcome(1, f"the store of the job failed: {error}"))


def _endpoint(invitation: Invitation, frame: Frame) -> Endpoint:
    try:
        return invitation.endpoints[number_of(frame.payload, 0)]
    except IndexError:
        raise FrameError(f"no endpoint of the invitation: {frame.payload[:80]!r}") from None
