"""What a job is made of once its store is open: where it stands, and whom to supervise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod.runner.protocol.agent_job import DEFAULT_GRACE_S
from horovod.runner.supervision.connect_back import ConnectBack
from horovod.runner.supervision.supervisor import Crossing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack

    from horovod._job.job import LocalJob
    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.protocol.invitation import Invitation
    from horovod.runner.starting.means import Means
    from horovod.runner.starting.requests import Caller
    from horovod.runner.supervision.elastic_supervisor import Fleet
    from horovod.runner.supervision.events import Policy
    from horovod.runner.supervision.link import AgentLink, AgentProcess


@dataclass(frozen=True)
class Site:
    """A job whose store is open and whose hosts may take part.

    Attributes:
        job: with the store.
        means: starts agents.
        invitation: leads hosts to the store.
        caller: who launches the job.
        stack: ends before the store.
        after_store: ends after the store.
    """

    job: LocalJob
    means: Means
    invitation: Invitation
    caller: Caller
    stack: ExitStack
    after_store: ExitStack


@dataclass(frozen=True)
class Crew:
    """The agents of a job, and what decides about them.

    Attributes:
        start_timeout_s: until all agents must have reported.
        start_agent: creates the agent of a host.
        explain: says in one line why an agent is gone; None for what it wrote.
        jobs: of each host, if the hosts stay.
        fleet: what an elastic job is made of; None if the hosts stay.
        policy: what decides; None for a job that fails with its first rank.
        crossing: how agents find the store; None if their jobs say it.
        grace_s: how long ranks may take to end after a signal.
    """

    start_timeout_s: float
    start_agent: Callable[[AgentJob], AgentProcess]
    explain: Callable[[AgentLink], str] | None = None
    jobs: Sequence[AgentJob] = ()
    fleet: Fleet | None = None
    policy: Policy | None = None
    crossing: Crossing | None = None
    grace_s: float = DEFAULT_GRACE_S


def crossing_of(site: Site, jobs: Sequence[AgentJob]) -> Crossing:
    """Return how the agents of hosts that stay agree on one way to the store."""
    hostnames = [job.hostname for job in jobs]
    ways = ConnectBack(site.invitation.endpoints, hostnames)
    return Crossing(site.invitation, ways, site.job.narrow)
