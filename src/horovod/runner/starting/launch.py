"""Runs a job: chooses the means, opens the store, assembles all that watches, and supervises."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._job.job import open_job
from horovod._rendezvous.reserved_port import reserve_port
from horovod._settings.config import Config
from horovod.errors import UsageError
from horovod.runner.output.output import Output
from horovod.runner.placing import this_machine
from horovod.runner.placing.jax_environment import with_framework_variables
from horovod.runner.placing.plan import make_plan, membership_of
from horovod.runner.placing.torch_environment import (
    LOOPBACK,
    warn_of_rank_variables,
)
from horovod.runner.protocol.invitation import Invitation
from horovod.runner.starting.before_start import check_timeline
from horovod.runner.starting.means import means_of
from horovod.runner.starting.observed_job import check_watching, observed, watching_of
from horovod.runner.starting.requests import (
    ElasticRequest,
    FixedRequest,
    InvitedRequest,
    MpiRequest,
    NodeRequest,
)
from horovod.runner.starting.stdin import check_stdin_rank, lend_stdin, own_stdin
from horovod.runner.starting.supervise import (
    Crew,
    Site,
    agents_of,
    agents_that_cross,
    supervise,
)
from horovod.runner.supervision.fixed import FixedJob, placed_workers
from horovod.runner.supervision.slow_worker_watch import SlowWorkerWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.starting.means import Means
    from horovod.runner.starting.requests import Caller, JobRequest
    from horovod.runner.supervision.outcome import Outcome


def start(request: JobRequest, caller: Caller) -> Outcome:
    """Run a job by the means that it asks for, and wait for its end.

    Args:
        request: what to run, and where.
        caller: who launches it.

    Returns:
        How the job ended. No process of it is left.

    Raises:
        UsageError: an interface does not exist, fixed hosts have too few slots, the output or the
            timeline cannot be written, or the rank that is to have stdin cannot have it.
        StartError: the store cannot listen, or what lets hosts join has failed.
        TimeoutError: not all invited hosts joined in time.
    """
    # What most jobs do without is loaded only when it is needed: a job is to start soon.
    if isinstance(request, NodeRequest):
        from horovod.runner.starting.nodes import launch_node

        return launch_node(request, caller)
    if isinstance(request, MpiRequest):
        from horovod.runner.starting.by_mpi import launch_by_mpirun

        return launch_by_mpirun(request, caller)
    return launch(request, means_of(request, log_of(request, caller)), caller)


def launch(request: JobRequest, means: Means, caller: Caller) -> Outcome:
    """Run a job whose agents this process starts; see :func:`start`."""
    settings, log = request.settings, log_of(request, caller)
    _check(request, means)
    with ExitStack() as after_store, ExitStack() as stack:
        output = open_output(request, caller, *_ranks_of(request))
        after_store.callback(output.close)
        first, *further = means.addresses(settings.network_interfaces)
        job = stack.enter_context(open_job(first, further_addresses=further))
        for address, port in job.server.endpoints:
            log(f"the store of the job listens at {address} port {port}")
        stack.enter_context(caller.store_user(job.server))
        invitation = Invitation(job.server.endpoints, job.where.secret, settings.network_interfaces)
        alarm = stack.enter_context(means.attend(job.server, invitation))
        caller = replace(caller, alarm=alarm or caller.alarm)
        caller = stack.enter_context(observed(job, request, caller, output))
        site = Site(job, means, invitation, caller, stack, after_store)
        return supervise(_crew_of(request, site), output, job.server, caller, log)


def _crew_of(request: JobRequest, site: Site) -> Crew:
    if isinstance(request, ElasticRequest):
        from horovod.runner.starting.elastic import elastic_crew

        return elastic_crew(request, site)
    if isinstance(request, InvitedRequest):
        from horovod.runner.starting.invited import invited_crew

        return invited_crew(request, site)
    assert isinstance(request, FixedRequest)
    return _fixed_crew(request, site)


def _fixed_crew(request: FixedRequest, site: Site) -> Crew:
    slots, settings, means = request.slots, request.settings, site.means
    hostnames = [slot.hostname for slot in slots]
    remote = [name for name in dict.fromkeys(hostnames) if means.is_remote(name)]
    site.job.publish(membership_of(slots))
    timeout_s = request.options.start_timeout_s
    if timeout_s is None:
        timeout_s = config_of("HOROVOD_START_TIMEOUT", settings.environ).start_timeout_s
    if slow_worker_of(settings) != "off":
        slow = SlowWorkerWatch(hostnames, say_slow(request, site.caller))
        site.stack.enter_context(slow.using(site.job.server))
    jobs = make_plan(slots, settings, site.job.where, os.getpid(), remote)
    if len(slots) > 1:
        warn_of_rank_variables(jobs[0].env, site.caller.console.say)
    if not remote:  # otherwise the agent of rank 0 keeps the port
        port = site.stack.enter_context(reserve_port()).getsockname()[1]
        jobs = [with_framework_variables(job, LOOPBACK, port) for job in jobs]
    if settings.stdin_rank is not None:
        own = site.stack.enter_context(own_stdin())
        jobs = [lend_stdin(job, settings.stdin_rank, own) for job in jobs]
    agents = agents_that_cross(site, jobs) if remote else agents_of(means, jobs)
    endpoints = site.job.server.endpoints if remote else ()
    policy = FixedJob(placed_workers(jobs), timeout_s, settings.grace_s, endpoints=endpoints)
    return Crew(agents, policy)


def _check(request: JobRequest, means: Means) -> None:
    """Refuse what cannot work before anything is started."""
    settings = request.settings
    slow_worker_of(settings)
    check_watching(watching_of(request))
    if not means.crosses:
        check_interfaces(settings.network_interfaces)
    if isinstance(request, FixedRequest):
        remote = [slot.hostname for slot in request.slots if means.is_remote(slot.hostname)]
        if request.slots[0].hostname not in remote:
            check_timeline(settings)
        if settings.stdin_rank is not None:
            check_stdin_rank(settings.stdin_rank, request.slots, remote)
    elif isinstance(request, ElasticRequest) and not means.crosses:
        _check_slots(request)


def _ranks_of(request: JobRequest) -> tuple[dict[int, int], int]:
    """Return the rank of each worker, as far as it is known, and how many there may be."""
    if isinstance(request, ElasticRequest):
        rules = request.rules
        return {}, max(rules.max_np or rules.np, rules.np)
    if isinstance(request, InvitedRequest):
        size = request.size
    else:
        assert isinstance(request, FixedRequest)
        size = len(request.slots)
    return {rank: rank for rank in range(size)}, size


def open_output(request: JobRequest, caller: Caller, ranks: Mapping[int, int], size: int) -> Output:
    """Return what takes the output of ``size`` ranks, of which some workers have one already.

    Raises:
        UsageError: the files cannot be created.
    """
    settings, options = request.settings, request.options
    output = Output(
        caller.console,
        directory=options.output_filename,
        timestamps=options.prefix_timestamp,
        colored=caller.console.colored(settings.environ),
        stdin_rank=settings.stdin_rank,
    )
    try:
        output.place(ranks, size)
    except BaseException:
        output.close()
        raise
    return output


def log_of(request: JobRequest, caller: Caller) -> Callable[[str], None]:
    """Return what takes a line for ``--verbose``."""
    return caller.console.say if request.options.verbose else lambda line: None


def _check_slots(request: ElasticRequest) -> None:
    slots = sum(host.slots or 0 for host in request.hosts)
    if slots < request.rules.gate:
        raise UsageError(
            f"the hosts have {slots} slots, but -np asks for {request.rules.gate} ranks, and no "
            "further host can come: name more slots, or give --host-discovery-script"
        )


def check_interfaces(names: Sequence[str]) -> None:
    """Refuse network interfaces that do not exist."""
    known = this_machine.network_interfaces()
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no network interface {name!r} here; there are {', '.join(known)}"
            )


def say_slow(request: JobRequest, caller: Caller) -> Callable[[str], object]:
    """Return what takes lines about slow workers: verdicts that are printed say more of them."""
    return caller.on_line if watching_of(request).verdicts else caller.say


def slow_worker_of(settings: JobSettings) -> str:
    """Return what becomes of slow ranks: "off", "report", "replace" or "remove"."""
    environ = {**settings.environ, **settings.variables}
    return config_of("HOROVOD_SLOW_WORKER", environ).slow_worker


def config_of(name: str, environ: Mapping[str, str]) -> Config:
    """Return settings of which only one is that of an environment; it may be malformed.

    The launcher may itself be a rank of another job, with more in its environment.
    """
    return Config.from_env({key: value for key, value in environ.items() if key == name})
