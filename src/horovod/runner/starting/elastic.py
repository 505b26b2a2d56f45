"""Runs an elastic job: its hosts and workers come and go while it trains."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._job.environment import Assignment
from horovod._job.job import Job, open_job
from horovod._rank.reports.end import end_report
from horovod.errors import UsageError
from horovod.runner.output.output import Output
from horovod.runner.placing import this_machine
from horovod.runner.placing.discovery import FixedHosts
from horovod.runner.placing.plan import INTERFACE_NAMES, common_environment
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
from horovod.runner.protocol.invitation import Invitation
from horovod.runner.starting.joined_hosts import JoinedHosts, addresses_for
from horovod.runner.starting.launch import (
    LaunchOptions,
    check_interfaces,
    explain,
    slow_worker_of,
    start_agent,
)
from horovod.runner.supervision.agent_executor import AgentExecutor
from horovod.runner.supervision.agents import Agents, Reporting
from horovod.runner.supervision.elastic.policy import ElasticJob
from horovod.runner.supervision.events import HostsDiscovered
from horovod.runner.supervision.news import News
from horovod.runner.supervision.slow_worker_watch import SlowMemberWatch, told_of
from horovod.runner.supervision.sources import asking, hearing, listening
from horovod.runner.supervision.store_commands import StoreCommands
from horovod.runner.supervision.supervisor import Supervisor
from horovod.runner.system.environment import without_own

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from horovod._job.environment import StoreAddress
    from horovod._job.membership import Membership
    from horovod._rendezvous.server import StoreServer
    from horovod.runner.placing.hosts import Host
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.starting.elastic_options import ElasticOptions
    from horovod.runner.supervision.elastic.rules import Rules
    from horovod.runner.supervision.link import AgentProcess
    from horovod.runner.supervision.outcome import Outcome
    from horovod.runner.supervision.sources import Discovery

_LOOPBACK = "127.0.0.1"


def check_fixed_hosts(hosts: Sequence[Host], rules: Rules) -> None:
    """Makes sure that hosts which never change have enough slots.

    Raises:
        UsageError: they do not; nothing could change that.
    """
    slots = sum(host.slots or 0 for host in hosts)
    if slots < rules.gate:
        raise UsageError(
            f"the hosts have {slots} slots, but -np asks for {rules.gate} ranks, and no further "
            "host can come: name more slots, or give --host-discovery-script"
        )


def launch_elastic(
    elastic: ElasticOptions,
    settings: JobSettings,
    options: LaunchOptions,
    store_user: Callable[[StoreServer], AbstractContextManager[None]] | None = None,
) -> Outcome:
    """Runs an elastic job, and waits for its end.

    Args:
        elastic: what the user asked of it.
        settings: what to run.
        options: how the launcher behaves.
        store_user: see :func:`horovod.runner.starting.launch.launch`.

    Returns:
        How the job ended. No process of it is left.

    Raises:
        UsageError: an interface does not exist, the fixed hosts have too few slots, or the output
            cannot be written.
        StartError: the store cannot listen.
    """
    mode = slow_worker_of({**settings.environ, **settings.variables})
    rules = replace(elastic.rules, slow_worker=mode)
    crosses = _may_cross(elastic, settings)

    def log(line: str) -> None:
        if options.verbose:
            options.console.say(line)

    joined = JoinedHosts(_others(elastic), log) if elastic.inviting else None
    with ExitStack() as stack:
        output = _output(elastic, settings, options)
        stack.callback(output.close)
        addresses = addresses_for(settings) if crosses else [_LOOPBACK]
        news = News()
        stack.callback(news.close)
        job = open_job(addresses[0], further_addresses=addresses[1:])
        # What reads the job's events ends with its store.
        stack.enter_context(listening(Job(job.server, job.where), news))
        stack.enter_context(job)
        stack.enter_context(hearing(job, news, elastic.rules.worker_timeout_s))
        for address, port in job.server.endpoints:
            log(f"the store of the job listens at {address} port {port}")
        if store_user is not None:
            stack.enter_context(store_user(job.server))
        slow = SlowMemberWatch(options.console.say, lambda each: news.put(told_of(each)))
        if rules.slow_worker != "off":
            stack.enter_context(slow.using(job.server))

        def published(membership: Membership) -> None:
            slow.follow(membership)
            elastic.published()

        plan = _Plan(elastic, settings, options, job.where, joined, crosses=crosses)
        invitation = Invitation(job.server.endpoints, job.where.secret, settings.network_interfaces)
        alarm = options.alarm
        if joined is not None and elastic.inviting is not None:
            # Hosts hear that the job is over before their invitation ends.
            alarm = stack.enter_context(elastic.inviting(invitation)) or alarm
            stack.enter_context(joined.using(job.server))
        agents = plan.agents(StoreCommands(job, published), invitation if crosses else None)
        reporting = Reporting(
            announce=options.console.say,
            log=log,
            report_of=lambda worker: end_report(worker, job.server.try_get),
        )
        outside = replace(options.from_outside, alarm=alarm, news=news)
        executor = AgentExecutor(agents, output, reporting)
        supervisor = Supervisor(ElasticJob(rules), executor, outside, log)
        discovery = joined or elastic.discovery
        if discovery is not None:
            stack.enter_context(asking(discovery, news))
        else:
            hosts = tuple((host.name, host.slots or 0) for host in elastic.hosts)
            news.put(HostsDiscovered(time.monotonic(), hosts))
        return supervisor.run()


def _may_cross(elastic: ElasticOptions, settings: JobSettings) -> bool:
    """Whether other machines may take part; if not, this one must be enough."""
    if elastic.discovery is not None or elastic.inviting is not None:
        return True
    if this_machine.other_machines([host.name for host in elastic.hosts]):
        return True
    check_interfaces(settings.network_interfaces)
    check_fixed_hosts(elastic.hosts, elastic.rules)
    return False


def _output(elastic: ElasticOptions, settings: JobSettings, options: LaunchOptions) -> Output:
    output = Output(
        options.console,
        directory=options.output_filename,
        timestamps=options.prefix_timestamp,
        colored=options.console.colored(settings.environ),
    )
    most = elastic.rules.max_np or elastic.rules.np
    output.place({}, max(most, elastic.rules.np))
    return output


def _others(elastic: ElasticOptions) -> Discovery:
    """What tells the hosts that do not join by themselves."""
    if elastic.discovery is not None:
        return elastic.discovery
    return FixedHosts({host.name: host.slots or 0 for host in elastic.hosts})


class _Plan:
    """What agents and workers are told."""

    def __init__(
        self,
        elastic: ElasticOptions,
        settings: JobSettings,
        options: LaunchOptions,
        store: StoreAddress,
        joined: JoinedHosts | None,
        *,
        crosses: bool,
    ) -> None:
        self._rules = elastic.rules
        self._gone = elastic.gone
        self._users = {host.name: host.user for host in elastic.hosts}
        self._settings = settings
        self._options = options
        self._store = store
        self._joined = joined
        self._crosses = crosses
        self._start_timeout_s = options.start_timeout_s

    def agents(self, store: StoreCommands, invitation: Invitation | None) -> Agents:
        """Return how agents are started, and what they are told."""
        return Agents(
            start=self.start_agent,
            job_of=self.job_of,
            worker_of=self.worker_of,
            explain=lambda link: explain(link) if link.pid else self._gone,
            invitation=invitation,
            store=store,
        )

    def start_agent(self, job: AgentJob) -> AgentProcess:
        """Starts the agent of a host, or has the host start it.

        Raises:
            OSError: it cannot be started.
        """
        if self._has_joined(job.hostname):
            assert self._joined is not None
            return self._joined.start_agent(job.hostname)
        return start_agent(job, self._settings, self._options)

    def _has_joined(self, host: str) -> bool:
        return self._joined is not None and self._joined.has(host)

    def job_of(self, host: str, slots: int) -> AgentJob:
        """What the agent of a host is told."""
        settings = self._settings
        is_remote = self._has_joined(host) or not this_machine.is_local(host)
        if is_remote:
            settings = replace(settings, environ=without_own(settings.environ))
        env = common_environment(settings, self._store)
        if self._crosses:
            # Each agent finds out which interface of its host leads to the others.
            chosen = "NCCL_SOCKET_IFNAME" in {**settings.environ, **settings.variables}
            for name in ("HOROVOD_GLOO_IFACE",) if chosen else INTERFACE_NAMES:
                del env[name]
        for name in _PLACE:
            env.pop(name, None)
        return AgentJob(
            hostname=host,
            cwd=settings.cwd,
            env=env,
            workers=(),
            secret=self._store.secret,
            launcher_pid=0 if is_remote else os.getpid(),
            user=self._users.get(host, ""),
            network_interfaces=settings.network_interfaces,
            grace_s=settings.grace_s,
            stays=True,
            slots=slots,
        )

    def worker_of(self, host: str, worker: int, identity: str, slot: int, rank: int) -> WorkerJob:
        """What is started; its rank is only the one under which its output appears."""
        told = Assignment(
            identity=identity,
            hostname=host,
            slot=slot,
            elastic=True,
            min_size=self._rules.min_np,
            max_size=self._rules.max_np,
            elastic_timeout_s=self._rules.elastic_timeout_s,
            worker_timeout_s=self._rules.worker_timeout_s,
            start_timeout_s=self._start_timeout_s,
        )
        return WorkerJob(worker, rank, told.variables(), self._settings.command)


# No worker inherits a place: each asks the store for its own.
_PLACE = tuple(
    f"HOROVOD_{name}"
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
)
