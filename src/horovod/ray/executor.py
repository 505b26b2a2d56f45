"""Runs functions as the ranks of a job, in actors of Ray."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError
from horovod.ray import ray_logger
from horovod.ray.settings import (
    MiniSettings,
    Wanted,
    check_mode,
    create_settings,
    gpus_of,
    renamed,
)
from horovod.ray.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Callback = Callable[[dict[str, Any]], object]


class RayExecutor:
    """Actors of a Ray cluster that are the ranks of one job.

    ``ray.init()`` comes before :meth:`start`. The functions that are run call ``hvd.init()`` as any
    script does; the processes stay until :meth:`shutdown`, with all that functions leave in them.
    Ranks are grouped by node. If a rank fails, the others are ended.

    Args:
        settings: see :meth:`create_settings`; None for the defaults.
        num_workers: how many ranks, on as few nodes as there is room on.
        num_hosts, num_workers_per_host: in place of it, on how many nodes how many ranks each.
        cpus_per_worker: CPUs of Ray for each rank.
        use_gpu, gpus_per_worker: whether ranks need GPUs, and how many each. All ranks of a node
            see all its GPUs of the job, so that ``hvd.local_rank()`` chooses one.
        use_current_placement_group: whether to use that of the caller, as in a trial of Ray Tune.
        min_workers, max_workers, reset_limit, cooldown_range, elastic_timeout, override_discovery:
            of elastic jobs, which this version cannot run on Ray.
        num_slots, cpus_per_slot, gpus_per_slot: what ``num_workers_per_host``, ``cpus_per_worker``
            and ``gpus_per_worker`` were once called.

    Raises:
        ValueError: the arguments contradict one another.
        UnsupportedError: ``min_workers`` is given.

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
        self._wanted = Wanted(
            num_workers,
            num_hosts,
            int(per_host or 1),
            cpus or 0,
            gpus_of(use_gpu, gpus),
            use_current_placement_group,
        )
        self._workers: Workers | None = None

    create_settings = staticmethod(create_settings)

    @property
    def num_workers(self) -> int:
        """The number of ranks."""
        return self._wanted.size

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, object] | None = None,
    ) -> None:
        """Starts the workers, and waits until they are there.

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
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """Calls ``fn(*args, **kwargs)`` on all ranks.

        Args:
            fn: a function; it and what it refers to can be pickled.
            args, kwargs: of it, the same on all ranks.
            callbacks: hear what the function gives to ``ray_logger.log``.

        Returns:
            The result of each rank.

        Raises:
            UsageError: the workers were not started, or a rank has failed before.
            Exception: what the function raised on the rank that failed first; the other ranks are
                ended. Attributes and the log of ``horovod`` say which rank it was.
        """
        return self.execute(_without_executable(fn, args, kwargs), callbacks)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """As :meth:`run`, but returns at once: references to the result of each rank."""
        return self._running().begin("execute", _without_executable(fn, args, kwargs))

    def execute(
        self, fn: Callable[[Any], Any], callbacks: Sequence[Callback] | None = None
    ) -> list[Any]:
        """Calls ``fn(executable)`` on all ranks; see :meth:`run`."""
        workers = self._running()
        with ray_logger.hearing(callbacks) if callbacks else nullcontext() as queue:
            workers.call("set_queue", queue)
            return workers.call("execute", fn)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls ``fn(executable)`` on rank 0 only; returns its result."""
        return self._running().call("execute", fn, ranks=[0])[0]

    def shutdown(self) -> None:
        """Ends the workers, and gives their resources back. Idempotent."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.end()

    def _running(self) -> Workers:
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
    fn: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Callable[[Any], Any]:
    args, kwargs = list(args or ()), dict(kwargs or {})
    return lambda _: fn(*args, **kwargs)
