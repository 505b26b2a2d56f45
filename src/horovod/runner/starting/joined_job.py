"""Runs a job of a fixed size on hosts that join by themselves."""

from __future__ import annotations

import os
import selectors
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from horovod._job.environment import Assignment
from horovod._job.job import open_job
from horovod._job.membership import assign_places
from horovod._rank.reports.end import end_report
from horovod.errors import StartError
from horovod.runner.output.output import Output
from horovod.runner.placing.discovery import FixedHosts
from horovod.runner.placing.plan import INTERFACE_NAMES, common_environment
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
from horovod.runner.protocol.invitation import Invitation
from horovod.runner.starting.elastic_options import GONE
from horovod.runner.starting.joined_hosts import JoinedHosts, addresses_for
from horovod.runner.supervision.agent_executor import AgentExecutor
from horovod.runner.supervision.agents import Agents, Reporting, job_by_host
from horovod.runner.supervision.early_exit import leave_note
from horovod.runner.supervision.fixed import FixedJob, placed_in
from horovod.runner.supervision.supervisor import Outside, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from horovod._job.environment import StoreAddress
    from horovod._job.membership import Membership, Worker
    from horovod._rendezvous.server import StoreServer
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.starting.elastic_options import Inviting
    from horovod.runner.starting.launch import LaunchOptions
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.outcome import Outcome
    from horovod.runner.supervision.supervisor import Alarm

# Who has joined answers through the store, and the caller is to hear of a failure within 3 s.
_SETTLE_S = 1.0


@dataclass(frozen=True)
class JoinedJob:
    """A job of which each rank comes with a host of its own.

    Hosts of such a job are whatever joins with one slot. Ranks of which :attr:`worker_of` says
    that they share a machine become neighbors, and have local ranks there.

    Attributes:
        size: how many ranks.
        inviting: lets hosts join, as long as the job lasts; what it yields may end the job.
        worker_of: who runs on a host that has joined, and on which machine.
        order: the key by which hosts are sorted; rank 0 is on the first one.
        start_timeout_s: until all must have joined.
        gone: why a host is lost that says nothing more.
    """

    size: int
    inviting: Inviting
    worker_of: Callable[[StoreServer, str], Worker]
    order: Callable[[str], int]
    start_timeout_s: float
    gone: str = GONE


def launch_joined(
    job: JoinedJob,
    settings: JobSettings,
    options: LaunchOptions,
    store_user: Callable[[StoreServer], AbstractContextManager[None]],
) -> Outcome:
    """Runs a job whose hosts join, and waits for its end.

    Args:
        job: who takes part.
        settings: what to run; the hosts have environments and working directories of their own.
        options: how the launcher behaves.
        store_user: see :func:`horovod.runner.starting.launch.launch`.

    Returns:
        How the job ended. No process of it is left.

    Raises:
        TimeoutError: not all hosts joined in time.
        StartError: what lets hosts join has failed, or the store cannot listen.
    """

    def log(line: str) -> None:
        if options.verbose:
            options.console.say(line)

    with ExitStack() as stack:
        output = Output(options.console, timestamps=options.prefix_timestamp)
        stack.callback(output.close)
        output.place({rank: rank for rank in range(job.size)}, job.size)
        news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        stack.callback(os.close, news)
        addresses = addresses_for(settings)
        opened = stack.enter_context(open_job(addresses[0], further_addresses=addresses[1:]))
        server = opened.server
        invitation = Invitation(server.endpoints, opened.where.secret, settings.network_interfaces)
        stack.enter_context(store_user(server))

        def tell_change() -> None:
            with suppress(OSError):  # the job is over
                os.eventfd_write(news, 1)

        joined = JoinedHosts(FixedHosts({}), log, tell_change)
        # Hosts hear that the job is over before their invitation ends.
        alarm = stack.enter_context(job.inviting(invitation))
        stack.enter_context(joined.using(server))
        names = _await_hosts(job, joined, news, alarm, options.wakeups)
        workers = [job.worker_of(server, name) for name in names]
        membership = assign_places(None, workers, 0)
        opened.publish(membership)
        host_of = dict(zip((each.identity for each in workers), names, strict=True))
        hosts = [host_of[each.worker.identity] for each in membership.members]
        jobs = _jobs(membership, hosts, settings, opened.where)

        def told_of_exit(ended: RankExit) -> None:
            leave_note(ended, server.try_get, server.add)

        agents = Agents(
            start=lambda each: joined.start_agent(each.hostname),
            job_of=job_by_host(jobs),
            explain=lambda link: job.gone,
            invitation=invitation,
            on_chosen=opened.narrow,
        )
        reporting = Reporting(
            announce=options.console.say,
            log=log,
            on_exit=told_of_exit,
            report_of=lambda worker: end_report(worker, server.try_get),
        )
        policy = FixedJob(
            placed_in(jobs), job.start_timeout_s, settings.grace_s, _SETTLE_S, server.endpoints
        )
        executor = AgentExecutor(agents, output, reporting)
        outside = Outside(wakeups=options.wakeups, alarm=alarm)
        return Supervisor(policy, executor, outside, log).run()


def _await_hosts(
    job: JoinedJob, joined: JoinedHosts, news: int, alarm: Alarm | None, wakeups: int | None
) -> list[str]:
    """Waits until as many hosts have joined as there are ranks; returns them in order."""
    deadline_s = time.monotonic() + job.start_timeout_s
    with selectors.DefaultSelector() as selector:
        for descriptor in (news, wakeups, None if alarm is None else alarm.descriptor):
            if descriptor is not None:
                selector.register(descriptor, selectors.EVENT_READ)
        while len(found := joined.find_available_hosts_and_slots()) < job.size:
            left_s = deadline_s - time.monotonic()
            ready = {key.fd for key, _ in selector.select(max(0.0, left_s))}
            if alarm is not None and alarm.descriptor in ready:
                raise StartError(alarm.cause().message)
            if left_s <= 0:
                raise TimeoutError(
                    f"{len(found)} of {job.size} joined within {job.start_timeout_s:g} s"
                )
            for descriptor in ready:  # the handler of a signal has run, and raised nothing
                os.read(descriptor, 64)
    return sorted(found, key=job.order)[: job.size]


def _jobs(
    membership: Membership, hosts: Sequence[str], settings: JobSettings, store: StoreAddress
) -> list[AgentJob]:
    env = common_environment(settings, store)
    # Each agent finds out which interface of its host leads to the others.
    for name in INTERFACE_NAMES:
        if name not in settings.variables:
            env.pop(name, None)
    common = AgentJob("", "", env, (), store.secret, grace_s=settings.grace_s)
    common = replace(common, network_interfaces=settings.network_interfaces)
    jobs = []
    for member, host in zip(membership.members, hosts, strict=True):
        place = member.place
        variables = Assignment(place=place, hostname=member.worker.host).variables()
        worker = WorkerJob(place.rank, place.rank, variables, settings.command)
        jobs.append(replace(common, hostname=host, workers=(worker,), slots=place.local_size))
    return jobs
