"""Describes how to start the agents of a job, and the receivers of its reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._rank.reports.end import EndReport
    from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
    from horovod.runner.protocol.invitation import Endpoint, Invitation
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.link import AgentLink, AgentProcess
    from horovod.runner.supervision.outcome import Outcome
    from horovod.runner.supervision.store_commands import StoreCommands


def what_it_wrote(link: AgentLink) -> str:
    """Return the last lines of an agent, to follow a reason; empty for none."""
    lines = link.complaints()
    return "; it wrote:" + "".join(f"\n    {line}" for line in lines) if lines else ""


def explain(link: AgentLink) -> str:
    """Return why an agent that is gone did not stay."""
    return f"it ended{what_it_wrote(link)}"


@dataclass(frozen=True)
class Agents:
    """Functions that start the agents of a job, and the contents of the jobs they get.

    Attributes:
        start: creates the agent process of a host; raises OSError if it cannot.
        job_of: returns what the agent of a host with so many slots is told.
        worker_of: returns what is started for host, number, identity, slot and the rank under
            which its output appears; None if all workers are in the jobs of their agents.
        explain: returns why an agent that is gone did not stay, in one line.
        invitation: sent first, so that hosts find a way to the store; None if their jobs name it.
        on_chosen: called with the endpoint that all hosts reach, before the ranks start.
        store: carries out commands for the store; None if the policy has none.
    """

    start: Callable[[AgentJob], AgentProcess]
    job_of: Callable[[str, int], AgentJob]
    worker_of: Callable[[str, int, str, int, int], WorkerJob] | None = None
    explain: Callable[[AgentLink], str] = explain
    invitation: Invitation | None = None
    on_chosen: Callable[[Endpoint], object] = lambda endpoint: None
    store: StoreCommands | None = None


def job_by_host(jobs: Sequence[AgentJob]) -> Callable[[str, int], AgentJob]:
    """Return the ``job_of`` of hosts that are fixed, and start all of their workers at once."""
    by_host = {job.hostname: job for job in jobs}
    return lambda host, slots: by_host[host]


@dataclass(frozen=True)
class Reporting:
    """Callbacks that report what happens to a job.

    Attributes:
        announce: takes one line for the user.
        log: takes one line about what happens; for ``--verbose``.
        on_exit: called with the end of each rank that ends by itself, at once.
        on_outcome: called when it is decided how the job ends, before its ranks are stopped.
        report_of: returns what a worker that failed has said why; None if it said nothing.
    """

    announce: Callable[[str], object]
    log: Callable[[str], object] = lambda line: None
    on_exit: Callable[[RankExit], object] = lambda ended: None
    on_outcome: Callable[[Outcome], object] = lambda outcome: None
    report_of: Callable[[int], EndReport | None] = lambda worker: None
