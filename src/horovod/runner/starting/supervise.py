"""Assembles a job once its store is open; the only module that makes its supervisor."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._rank.reports.end import EndReport, end_report
from horovod.errors import StartError
from horovod.runner.supervision.agent_executor import AgentExecutor
from horovod.runner.supervision.agents import Agents, Reporting, job_by_host
from horovod.runner.supervision.early_exit import leave_note
from horovod.runner.supervision.supervisor import Outside, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._job.job import LocalJob
    from horovod._job.records import Store
    from horovod.runner.output.output import Output
    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.protocol.invitation import Invitation
    from horovod.runner.starting.means import Means
    from horovod.runner.starting.requests import Caller
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.news import News
    from horovod.runner.supervision.outcome import Outcome
    from horovod.runner.supervision.policy import Policy


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
        agents: how they are started, and what they are told.
        policy: decides.
        news: events of other threads; None if there are none.
    """

    agents: Agents
    policy: Policy
    news: News | None = None


def agents_that_cross(site: Site, jobs: Sequence[AgentJob]) -> Agents:
    """Return the agents of hosts that stay, which have to agree on one way to the store."""
    means = site.means
    return Agents(
        means.start_agent,
        job_by_host(jobs),
        explain=means.explain,
        invitation=site.invitation,
        on_chosen=site.job.narrow,
    )


def agents_of(means: Means, jobs: Sequence[AgentJob]) -> Agents:
    """Return the agents of hosts that stay and whose jobs name the store."""
    return Agents(means.start_agent, job_by_host(jobs), explain=means.explain)


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

    reporting = Reporting(caller.say, log, on_exit, caller.on_outcome, report_of)
    outside = Outside(caller.interrupts, caller.wakeups, caller.alarm, crew.news)
    executor = AgentExecutor(crew.agents, output, reporting)
    return Supervisor(crew.policy, executor, outside, log).run()
