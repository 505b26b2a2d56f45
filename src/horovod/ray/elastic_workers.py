"""The workers of an elastic executor: what it was asked for, and how a job of them is run."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ray
import ray.util
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod._job.job import open_job
from horovod._settings.config import inherited_environment
from horovod.errors import RankFailedError, UsageError
from horovod.ray import ray_logger
from horovod.ray.actor_executor import ActorExecutor, results_of
from horovod.ray.discovery import RayHostDiscovery
from horovod.ray.elastic_actor import ActorCall, ElasticActor
from horovod.ray.job_actor import OUTPUT
from horovod.runner.starting.elastic import elastic_assignment, follow_workers
from horovod.runner.starting.observed_job import check_watching
from horovod.runner.starting.requests import Watching
from horovod.runner.starting.served import served, with_variables
from horovod.runner.supervision.elastic.policy import ElasticJob
from horovod.runner.supervision.sources import asking
from horovod.runner.supervision.supervisor import Outside, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horovod._job.environment import Assignment, StoreAddress
    from horovod._job.membership import Membership
    from horovod.ray.elastic_actor import Failed
    from horovod.ray.ray_logger import Callback
    from horovod.ray.settings import Limits, MiniSettings
    from horovod.runner.supervision.commands import StartWorker
    from horovod.runner.supervision.elastic.rules import Rules
    from horovod.runner.supervision.outcome import Outcome
    from horovod.runner.supervision.sources import Discovery

_logger = logging.getLogger(__name__)

# Ray gives each node one of what is called by its address; this much of it ties a worker to it.
_PIN = 0.001


@dataclass(frozen=True)
class Plan:
    """The plan of an elastic job.

    Attributes:
        limits: what the executor was asked for.
        settings: see :class:`horovod.ray.settings.MiniSettings`.
        env_vars: of the environment of all workers.
        discovery: tells which nodes there are.
    """

    limits: Limits
    settings: MiniSettings
    env_vars: Mapping[str, str]
    discovery: Discovery


@dataclass(frozen=True)
class Ending:
    """The end of a job.

    Attributes:
        outcome: how it ended.
        results: what functions have returned.
        failed: what the one raised that failed first; None if none did.
    """

    outcome: Outcome
    results: list[Any]
    failed: Failed | None


class ElasticWorkers:
    """Runs jobs whose workers come and go; there are workers only while one runs.

    Args:
        limits: how many there may be, with what resources.
        settings: see :class:`MiniSettings`.
        env_vars: variables of the environment of their processes.
        executable: the class of the object that each has, and the arguments of its constructor.
    """

    def __init__(
        self,
        limits: Limits,
        settings: MiniSettings,
        env_vars: Mapping[str, object],
        executable: tuple[type | None, Sequence[object] | None, Mapping[str, object] | None] = (
            None,
            None,
            None,
        ),
    ) -> None:
        discovery = getattr(settings, "discovery", None)  # they may be of another class
        if limits.override_discovery:
            discovery = RayHostDiscovery(
                limits.gpus_per_worker > 0, limits.cpus_per_worker, limits.gpus_per_worker
            )
        if discovery is None:
            raise UsageError(
                "override_discovery=False needs settings.discovery, an object with "
                "find_available_hosts_and_slots()"
            )
        variables = {name: str(value) for name, value in env_vars.items()}
        self._plan = Plan(limits, settings, variables, discovery)
        self._executable = executable

    def run(
        self,
        func: Callable[[Any], object],
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """Runs a job to its end: each worker calls ``func(executable)`` once.

        Returns:
            What the functions have returned, in the order of the first ranks of their workers.

        Raises:
            RankFailedError: the job failed; its cause is what the function raised that failed
                first, if one did.
        """
        with ray_logger.hearing(callbacks) if callbacks else nullcontext() as queue:
            call = ActorCall(func, *self._executable, queue)
            if ray.util.client.ray.is_connected():
                # A client has no way to the workers, so the job is led from inside the cluster.
                lead = ray.remote(run_job).options(num_cpus=0, max_retries=0)
                ending: Ending = ray.get(lead.remote(self._plan, call))
            else:
                ending = run_job(self._plan, call)
        if ending.outcome.exit_code:
            raise error_of(ending)
        return ending.results


def run_job(plan: Plan, call: ActorCall) -> Ending:
    """Runs an elastic job; no actor of it is left at its end.

    Raises:
        StartError: the store of the job cannot listen, or a setting makes no sense.
    """
    rules = plan.limits.rules_in(plan.env_vars)
    watching = with_variables(Watching(), {**inherited_environment(), **plan.env_vars})
    check_watching(watching)
    with ExitStack() as after_store, ExitStack() as stack:
        job = stack.enter_context(open_job(str(ray.util.get_node_ip_address())))
        news, published = follow_workers(job, rules, _logger.warning, stack, after_store)
        stream = stack.enter_context(served(job, sys.argv[:100], watching, _say, elsewhere=OUTPUT))
        start_actor = _Starter(plan, call, job.where, rules)

        def follow(membership: Membership) -> None:
            published(membership)
            stream.news.begin_generation()

        executor = ActorExecutor(job, start_actor, follow)
        supervisor = Supervisor(ElasticJob(rules), executor, Outside(news=news), _logger.info)
        _ask_for_nodes(plan.limits, stack)
        stack.enter_context(asking(plan.discovery, news))
        outcome = supervisor.run()
        stream.end(outcome.message)
    failure = outcome.failure
    failed = None if failure is None else executor.errors.get(failure.worker)
    return Ending(outcome, results_of(executor.results), failed)


def _say(line: str) -> None:
    print(f"horovod: {line}", file=sys.stderr, flush=True)


def error_of(ending: Ending) -> RankFailedError:
    """The error for a job that failed; its cause is that of the function, if there is one."""
    outcome, failed = ending.outcome, ending.failed
    failure = outcome.failure
    error = RankFailedError(
        outcome.report,
        rank=-1 if failure is None else failure.rank,
        host="" if failure is None else failure.hostname,
        exit_code=outcome.exit_code,
        traceback="" if failed is None else failed.traceback,
    )
    error.__cause__ = None if failed is None else failed.load()
    return error


def _ask_for_nodes(limits: Limits, stack: ExitStack) -> None:
    """Lets the autoscaler of the cluster, if it has one, look for room for the most workers."""
    most = limits.rules.max_np
    if most is None:
        return
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[limits.resources] * most)
    stack.callback(request_resources, bundles=[])


class _Starter:
    """Starts workers where the policy wants them."""

    def __init__(self, plan: Plan, call: ActorCall, store: StoreAddress, rules: Rules) -> None:
        self._plan = plan
        self._call = ray.put(call)
        self._store = store
        self._rules = rules
        self._class = ray.remote(ElasticActor)

    def __call__(self, command: StartWorker) -> tuple[Any, Any, Any]:
        limits = self._plan.limits
        node = getattr(self._plan.discovery, "node_of", lambda host: "")(command.host)
        options: dict[str, Any] = {
            "num_cpus": limits.cpus_per_worker,
            "num_gpus": limits.gpus_per_worker,
            "max_restarts": 0,
        }
        if node:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        else:
            options["resources"] = {f"node:{command.host}": _PIN}
        if self._plan.env_vars:
            options["runtime_env"] = {"env_vars": dict(self._plan.env_vars)}
        actor = self._class.options(**options).remote(0, 1)
        gpus = _gpus_of(node) if limits.gpus_per_worker else 0
        where = actor.where.remote()
        return actor, where, actor.take_part.remote(self._assignment(command), self._call, gpus)

    def _assignment(self, command: StartWorker) -> Assignment:
        settings = self._plan.settings
        return replace(
            elastic_assignment(self._rules, command.host, command.identity, command.slot),
            store=self._store,
            start_timeout_s=settings.timeout_s,
            network_interface=min(settings.nics or {""}),
        )


def _gpus_of(node: str) -> int:
    resources = [each["Resources"] for each in ray.nodes() if each["NodeID"] == node]
    return int(resources[0].get("GPU", 0)) if resources else 0
