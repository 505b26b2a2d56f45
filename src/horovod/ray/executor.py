"""Runs functions as the ranks of a job, in actors of Ray."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from horovod._job.function import check_call
from horovod.errors import UnsupportedError, UsageError
from horovod.ray import ray_logger
from horovod.ray.elastic_workers import ElasticWorkers
from horovod.ray.settings import (
    Limits,
    MiniSettings,
    Wanted,
    check_amounts,
    check_mode,
    create_settings,
    gpus_of,
    renamed,
    rules_of,
)
from horovod.ray.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horovod.ray.ray_logger import Callback


class RayExecutor:
    """Actors of a Ray cluster that are the ranks of one job.

    ``ray.init()`` comes before :meth:`start`. The functions that are run call ``hvd.init()`` as any
    script does; the processes stay until :meth:`shutdown`, with all that functions leave in them.
    Ranks are grouped by node. If a rank fails, the others are ended.

    With ``min_workers`` the job is elastic: ranks come and go while it trains, and each :meth:`run`
    has workers of its own, on all nodes of the cluster.

    Args:
        settings: see :meth:`create_settings`; None for the defaults.
        num_workers: how many ranks, on as few nodes as there is room on.
        num_hosts, num_workers_per_host: in place of it, on how many nodes how many ranks each.
        cpus_per_worker: CPUs of Ray for each rank.
        use_gpu, gpus_per_worker: whether ranks need GPUs, and how many each. All ranks of a node
            see all its GPUs of the job, so that ``hvd.local_rank()`` chooses one.
        use_current_placement_group: whether to use that of the caller, as in a trial of Ray Tune.
        min_workers: the fewest ranks of an elastic job; it begins when there are as many.
        max_workers: the most; None for as many as the cluster has room for. The autoscaler is
            asked for so many.
        reset_limit: how often the ranks may change; None for any number.
        cooldown_range: for how many seconds a node rests after its first failure (up to twice
            that), and the longest rest, after many; None: it gets no worker again.
        elastic_timeout: seconds to wait for room for ``min_workers``, and for workers there.
        override_discovery: whether the nodes of the cluster count, and not
            ``settings.discovery``, whose hosts exist as resources ``node:<host>``.
        num_slots, cpus_per_slot, gpus_per_slot: what ``num_workers_per_host``, ``cpus_per_worker``
            and ``gpus_per_worker`` were once called.

    Raises:
        ValueError: the arguments contradict one another, or a number is too small.

    Example:
        >>> executor = RayExecutor(RayExecutor.create_settings(), num_workers=4)
        >>> executor.start()
        >>> results = executor.run(train, args=[config])   # one per rank
        >>> executor.shutdown()
    """

    def __init__(
        self,
        settings: MiniSettings | None = None,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int | None = 1,
        cpus_per_worker: float | None = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[float] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
        *,
        num_slots: int | None = None,
        cpus_per_slot: float | None = None,
        gpus_per_slot: float | None = None,
    ) -> None:
        per_host = renamed("num_slots", num_slots, "num_workers_per_host", num_workers_per_host)
        cpus = renamed("cpus_per_slot", cpus_per_slot, "cpus_per_worker", cpus_per_worker)
        gpus = renamed("gpus_per_slot", gpus_per_slot, "gpus_per_worker", gpus_per_worker)
        check_mode(num_workers, num_hosts, min_workers, max_workers)
        self.settings = settings or MiniSettings()
        num_gpus = gpus_of(use_gpu, gpus)
        check_amounts(
            {
                "num_workers": num_workers,
                "num_hosts": num_hosts,
                "num_workers_per_host": per_host,
                "min_workers": min_workers,
                "max_workers": max_workers,
            },
            cpus,
            num_gpus,
        )
        self._limits: Limits | None = None
        if min_workers is not None:
            rules = rules_of(min_workers, max_workers, reset_limit, cooldown_range, elastic_timeout)
            self._limits = Limits(rules, cpus or 0, num_gpus, override_discovery)
        self._wanted = Wanted(
            num_workers or min_workers,
            num_hosts,
            int(per_host or 1),
            cpus or 0,
            num_gpus,
            use_current_placement_group,
        )
        self._workers: Workers | ElasticWorkers | None = None

    create_settings = staticmethod(create_settings)

    @property
    def num_workers(self) -> int:
        """The number of ranks; of an elastic job, the fewest."""
        return self._wanted.size

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[object] | None = None,
        executable_kwargs: Mapping[str, object] | None = None,
        extra_env_vars: Mapping[str, object] | None = None,
    ) -> None:
        """Starts the workers, and waits until they are there; those of elastic jobs come later.

        Args:
            executable_cls: a class of which each worker makes an object, for :meth:`execute`.
            executable_args, executable_kwargs: of its constructor.
            extra_env_vars: variables of the environment of the workers, from their start on.

        Raises:
            TimeoutError: the cluster has no room for them; nothing stays reserved.
            UsageError: they were started before.
            Exception: what the constructor has raised in a worker.
        """
        if self._workers is not None:
            raise UsageError("the workers of this RayExecutor run already: call shutdown() first")
        if self._limits is not None:
            executable = executable_cls, executable_args, executable_kwargs
            self._workers = ElasticWorkers(
                self._limits, self.settings, extra_env_vars or {}, executable
            )
            return
        workers = Workers(self._wanted, self.settings, extra_env_vars or {})
        try:
            workers.start()
            workers.call("start_executable", executable_cls, executable_args, executable_kwargs)
        except BaseException:
            workers.end()
            raise
        self._workers = workers

    def run(
        self,
        fn: Callable[..., object],
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """Calls ``fn(*args, **kwargs)`` on all ranks.

        Args:
            fn: a function; it and what it refers to can be pickled.
            args, kwargs: of it, the same on all ranks.
            callbacks: hear what the function gives to ``ray_logger.log``.

        Returns:
            The result of each rank. Of an elastic job, those of all workers whose function has
            returned, in the order of the ranks that they had at first.

        Raises:
            UsageError: the workers were not started, a rank has failed before, or the function is a
                generator or a coroutine, so that a call of it runs nothing.
            RankFailedError: an elastic job failed; the cause is the exception of the function.
            Exception: what the function raised on the rank that failed first; the other ranks are
                ended. Its attributes ``rank``, ``host`` and ``pid``, its notes (from Python 3.11
                on), and the log of ``horovod`` say which rank it was.
        """
        return self.execute(_without_executable(fn, args, kwargs, "run"), callbacks)

    def run_remote(
        self,
        fn: Callable[..., object],
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> list[Any]:
        """Do the same as :meth:`run`, but return at once: references to the result of each rank.

        Raises:
            UnsupportedError: the job is elastic, so its ranks come and go.
        """
        workers = self._fixed("run_remote")
        return workers.begin("execute", _without_executable(fn, args, kwargs, "run_remote"))

    def execute(
        self, fn: Callable[[Any], object], callbacks: Sequence[Callback] | None = None
    ) -> list[Any]:
        """Calls ``fn(executable)`` on all ranks; see :meth:`run`."""
        workers = self._running()
        if isinstance(workers, ElasticWorkers):
            return workers.run(fn, callbacks)
        with ray_logger.hearing(callbacks) if callbacks else nullcontext() as queue:
            workers.call("set_queue", queue)
            return workers.call("execute", fn)

    def execute_single(self, fn: Callable[[Any], object]) -> Any:
        """Calls ``fn(executable)`` on rank 0 only; returns its result.

        Raises:
            UnsupportedError: the job is elastic, and has no ranks between two calls of :meth:`run`.
        """
        return self._fixed("execute_single").call("execute", fn, ranks=[0])[0]

    def shutdown(self) -> None:
        """Ends the workers, and gives their resources back. Idempotent."""
        workers, self._workers = self._workers, None
        if isinstance(workers, Workers):
            workers.end()

    def _fixed(self, method: str) -> Workers:
        workers = self._running()
        if isinstance(workers, ElasticWorkers):
            raise UnsupportedError(
                f"{method}() is for jobs whose size stays: use run() or execute(), or num_workers"
            )
        return workers

    def _running(self) -> Workers | ElasticWorkers:
        if self._workers is None:
            raise UsageError("the workers of this RayExecutor do not run: call start() first")
        return self._workers

    def __enter__(self) -> RayExecutor:
        if self._workers is None:
            self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


def _without_executable(
    fn: Callable[..., Any],
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    method: str,
) -> Callable[[Any], Any]:
    args, kwargs = list(args or ()), dict(kwargs or {})
    check_call(fn, args, kwargs, f"RayExecutor.{method}")
    return lambda _: fn(*args, **kwargs)
