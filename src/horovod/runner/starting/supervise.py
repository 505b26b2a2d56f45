"""What a job is made of once its store is open, and the one place that makes its supervisor."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from horovod._rank.reports.end import EndReport, end_report
from horovod.errors import StartError
from horovod.runner.protocol.agent_job import DEFAULT_GRACE_S
from horovod.runner.supervision.connect_back import ConnectBack
from horovod.runner.supervision.early_exit import leave_note
from horovod.runner.supervision.supervisor import Crossing, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._job.job import LocalJob
    from horovod._job.records import Store
    from horovod.runner.output.output import Output
    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.protocol.invitation import Invitation
    from horovod.runner.starting.means import Means
    from horovod.runner.starting.requests import Caller
    from horovod.runner.supervision.elastic_supervisor import Fleet
    from horovod.runner.supervision.events import Policy
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.outcome import Outcome


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
        means: starts agents.
        start_timeout_s: until all agents must have reported.
        jobs: of each host, if the hosts stay.
        fleet: what an elastic job is made of; None if the hosts stay.
        policy: what decides; None for a job that fails with its first rank.
        crossing: how agents find the store; None if their jobs say it.
        grace_s: how long ranks may take to end after a signal.
    """

    means: Means
    start_timeout_s: float
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


def supervise(
    crew: Crew, output: Output, store: Store, caller: Caller, log: Callable[[str], None]
) -> Outcome:
    """Run a job to its end; ``store`` has reports of its ranks, ``log`` is for ``--verbose``."""

    def on_exit(ended: RankExit) -> None:
        with suppress(StartError):  # a store that is gone ends the job anyway
            leave_note(ended, store.try_get, store.add)
        caller.on_exit(ended)

    def report_of(worker: int) -> EndReport | None:
        try:
            return end_report(worker, store.try_get)
        except StartError:
            return None

    make: Callable[..., Supervisor]
    if crew.fleet is None:
        make = partial(
            Supervisor, crew.jobs, crossing=crew.crossing, grace_s=crew.grace_s, on_exit=on_exit
        )
    else:
        # Not for every job: it takes its time to load.
        from horovod.runner.supervision.elastic_supervisor import ElasticSupervisor

        make = partial(ElasticSupervisor, crew.fleet)
    return make(
        start_agent=crew.means.start_agent,
        output=output,
        start_timeout_s=crew.start_timeout_s,
        log=log,
        announce=caller.console.say,
        interrupts=caller.interrupts,
        wakeups=caller.wakeups,
        alarm=caller.alarm,
        explain=crew.means.explain,
        report_of=report_of,
        on_outcome=caller.on_outcome,
        policy=crew.policy,
    ).run()
