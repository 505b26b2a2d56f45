"""Assembles an elastic job, whose hosts and workers come and go during training."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._job.environment import Assignment
from horovod._job.job import Job
from horovod.runner.placing.plan import agent_job
from horovod.runner.placing.torch_environment import warn_of_rank_variables, without_outer_place
from horovod.runner.protocol.agent_job import WorkerJob
from horovod.runner.starting.launch import say_slow, slow_worker_of
from horovod.runner.starting.supervise import Crew
from horovod.runner.supervision.agents import Agents
from horovod.runner.supervision.elastic.policy import ElasticJob
from horovod.runner.supervision.events import HostsDiscovered
from horovod.runner.supervision.news import News
from horovod.runner.supervision.slow_worker_watch import SlowMemberWatch, slow_event_of
from horovod.runner.supervision.sources import asking, hearing, listening
from horovod.runner.supervision.store_commands import StoreCommands

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from horovod._job.job import LocalJob
    from horovod._job.membership import Membership
    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.starting.requests import ElasticRequest
    from horovod.runner.starting.supervise import Site
    from horovod.runner.supervision.elastic.rules import Rules


def elastic_crew(request: ElasticRequest, site: Site) -> Crew:
    """Return the agents and workers of an elastic job, and begin to follow its hosts."""
    means = site.means
    rules = replace(request.rules, slow_worker=slow_worker_of(request.settings))
    news, follow = follow_workers(
        site.job, rules, say_slow(request, site.caller), site.stack, site.after_store
    )

    def published(membership: Membership) -> None:
        follow(membership)
        site.caller.on_generation()

    warn_of_rank_variables(request.settings.environ, site.caller.console.say)
    plan = _Plan(request, site)
    if means.discovery is not None:
        site.stack.enter_context(asking(means.discovery, news))
    else:
        hosts = tuple((host.name, host.slots or 0) for host in request.hosts)
        news.put(HostsDiscovered(time.monotonic(), hosts))
    agents = Agents(
        means.start_agent,
        plan.job_of,
        plan.worker_of,
        explain=means.explain,
        invitation=site.invitation if means.crosses else None,
        store=StoreCommands(site.job, published),
    )
    return Crew(agents, ElasticJob(rules), news)


def follow_workers(
    job: LocalJob,
    rules: Rules,
    say: Callable[[str], object],
    stack: ExitStack,
    after_store: ExitStack,
) -> tuple[News, Callable[[Membership], None]]:
    """Begin to collect what the workers of an elastic job report.

    Args:
        job: whose store they write to; ``stack`` ends before it, and ``after_store`` after it.
        rules: of the job.
        say: takes a line about slow workers.

    Returns:
        What brings the reports, and what must hear of each generation.
    """
    news = News()
    after_store.callback(news.close)
    # What reads the job's events ends with its store.
    after_store.enter_context(listening(Job(job.server, job.where), news))
    stack.enter_context(hearing(job, news, rules.worker_timeout_s))
    slow = SlowMemberWatch(say, lambda member: news.put(slow_event_of(member)))
    if rules.slow_worker != "off":
        stack.enter_context(slow.using(job.server))
    return news, slow.follow


class _Plan:
    """The jobs of agents and workers, which are known only when they are needed."""

    def __init__(self, request: ElasticRequest, site: Site) -> None:
        self._rules = request.rules
        self._users = {host.name: host.user for host in request.hosts}
        self._settings = request.settings
        self._start_timeout_s = request.options.start_timeout_s
        self._store = site.job.where
        self._means = site.means

    def job_of(self, host: str, slots: int) -> AgentJob:
        """Return the job of the agent of a host."""
        pid = 0 if self._means.is_remote(host) else os.getpid()
        job = agent_job(self._settings, self._store, pid, crosses=self._means.crosses)
        inherited = without_outer_place(job.env)
        env = {name: value for name, value in inherited.items() if name not in _PLACE}
        user = self._users.get(host, "")
        return replace(job, hostname=host, env=env, user=user, stays=True, slots=slots)

    def worker_of(self, host: str, worker: int, identity: str, slot: int, rank: int) -> WorkerJob:
        """Return what is started; its rank is only the one under which its output appears."""
        assignment = elastic_assignment(self._rules, host, identity, slot)
        assignment = replace(assignment, start_timeout_s=self._start_timeout_s)
        return WorkerJob(worker, rank, assignment.variables(), self._settings.command)


def elastic_assignment(rules: Rules, host: str, identity: str, slot: int) -> Assignment:
    """Return what a worker of an elastic job is told; the store and timeouts may be added."""
    return Assignment(
        identity=identity,
        hostname=host,
        slot=slot,
        elastic=True,
        min_size=rules.min_np,
        max_size=rules.max_np,
        elastic_timeout_s=rules.elastic_timeout_s,
        worker_timeout_s=rules.worker_timeout_s,
    )


# No worker inherits a place: each asks the store for its own.
_PLACE = tuple(
    f"HOROVOD_{name}"
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
)
