"""Assembles a job of a fixed size whose hosts join by themselves."""

from __future__ import annotations

import os
import selectors
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._job.environment import Assignment
from horovod._job.membership import assign_places
from horovod.errors import StartError
from horovod.runner.placing.plan import agent_job
from horovod.runner.protocol.agent_job import WorkerJob
from horovod.runner.starting.means import InvitedHosts
from horovod.runner.starting.supervise import Crew, agents_that_cross
from horovod.runner.supervision.fixed import FixedJob, placed_workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._job.environment import StoreAddress
    from horovod._job.membership import Membership
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.starting.joined_hosts import JoinedHosts
    from horovod.runner.starting.requests import Caller, InvitedRequest
    from horovod.runner.starting.supervise import Site

# Who has joined answers through the store, and the caller is to hear of a failure within 3 s.
_SETTLE_S = 1.0


def invited_crew(request: InvitedRequest, site: Site) -> Crew:
    """Wait for the hosts of a job, and return their agents.

    Raises:
        TimeoutError: not all hosts joined in time.
        StartError: what lets hosts join has failed.
    """
    means, settings = site.means, request.settings
    assert isinstance(means, InvitedHosts)
    news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    site.after_store.callback(os.close, news)
    names = _await_hosts(request, means.joined, site.caller, news)
    workers = [request.worker_of(site.job.server, name) for name in names]
    membership = assign_places(None, workers, 0)
    site.job.publish(membership)
    host_of = dict(zip((worker.identity for worker in workers), names, strict=True))
    hosts = [host_of[member.worker.identity] for member in membership.members]
    jobs = _jobs(membership, hosts, settings, site.job.where)
    policy = FixedJob(
        placed_workers(jobs),
        request.start_timeout_s,
        settings.grace_s,
        _SETTLE_S,
        site.job.server.endpoints,
    )
    return Crew(agents_that_cross(site, jobs), policy)


def _await_hosts(
    request: InvitedRequest, joined: JoinedHosts, caller: Caller, news: int
) -> list[str]:
    """Waits until as many hosts have joined as there are ranks; returns them in order."""
    deadline = time.monotonic() + request.start_timeout_s
    alarm, wakeups = caller.alarm, caller.wakeups

    def tell_change() -> None:
        with suppress(OSError):  # the job is over
            os.eventfd_write(news, 1)

    joined.changed = tell_change
    with selectors.DefaultSelector() as selector:
        for descriptor in (news, wakeups, None if alarm is None else alarm.descriptor):
            if descriptor is not None:
                selector.register(descriptor, selectors.EVENT_READ)
        while len(found := joined.find_available_hosts_and_slots()) < request.size:
            left_s = deadline - time.monotonic()
            ready = {key.fd for key, _ in selector.select(max(0.0, left_s))}
            if alarm is not None and alarm.descriptor in ready:
                raise StartError(alarm.cause().message)
            if left_s <= 0:
                raise TimeoutError(
                    f"{len(found)} of {request.size} joined within {request.start_timeout_s:g} s"
                )
            for descriptor in ready:  # the handler of a signal has run, and raised nothing
                os.read(descriptor, 64)
    return sorted(found, key=request.order)[: request.size]


def _jobs(
    membership: Membership, hosts: Sequence[str], settings: JobSettings, store: StoreAddress
) -> list[AgentJob]:
    common = agent_job(settings, store, crosses=True)
    jobs = []
    for member, host in zip(membership.members, hosts, strict=True):
        place = member.place
        variables = Assignment(place=place, hostname=member.worker.host).variables()
        worker = WorkerJob(place.rank, place.rank, variables, settings.command)
        jobs.append(replace(common, hostname=host, workers=(worker,), slots=place.local_size))
    return jobs
