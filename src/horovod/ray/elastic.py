"""Elastic jobs on Ray in the words of Horovod before 0.24, with slots for workers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from horovod.ray import discovery
from horovod.ray.executor import RayExecutor
from horovod.ray.settings import MiniSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horovod.ray.ray_logger import Callback

__all__ = ["ElasticRayExecutor", "RayHostDiscovery", "TestDiscovery"]


class RayHostDiscovery(discovery.RayHostDiscovery):
    """:class:`horovod.ray.elastic_v2.RayHostDiscovery`, with slots called workers."""

    def __init__(
        self, use_gpu: bool = False, cpus_per_slot: float = 1, gpus_per_slot: float = 1
    ) -> None:
        super().__init__(use_gpu, cpus_per_slot, gpus_per_slot)


class TestDiscovery(discovery.TestDiscovery):
    """:class:`horovod.ray.elastic_v2.TestDiscovery`, with slots called workers."""

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: float = 1,
        verbose: bool = True,
        _graceful: bool = True,
    ) -> None:
        super().__init__(
            min_hosts,
            max_hosts,
            change_frequency_s,
            use_gpu,
            cpus_per_slot,
            gpus_per_slot,
            verbose,
            _graceful,
        )


@dataclass
class ElasticSettings(MiniSettings):
    """The settings of an :class:`ElasticRayExecutor`.

    Attributes:
        min_num_proc, max_num_proc: the fewest and the most ranks; None for no limit.
        reset_limit, cooldown_range, elastic_timeout: see :class:`horovod.ray.RayExecutor`.
    """

    min_num_proc: int = 1
    max_num_proc: int | None = None
    reset_limit: int | None = None
    cooldown_range: Sequence[float] | None = None
    elastic_timeout: float = 600

    @property
    def num_proc(self) -> int:
        """With how many ranks the job begins."""
        return self.min_num_proc


class ElasticRayExecutor:
    """An elastic job on Ray; a new program uses ``RayExecutor(min_workers=…)``.

    Args:
        settings: see :meth:`create_settings`.
        use_gpu, cpus_per_slot, gpus_per_slot: what each rank needs.
        env_vars: variables of the environment of all ranks.
        override_discovery: see :class:`horovod.ray.RayExecutor`.

    Raises:
        ValueError: the arguments contradict one another.

    Example:
        >>> executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2))
        >>> executor.start()
        >>> results = executor.run(train)
    """

    def __init__(
        self,
        settings: ElasticSettings,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: float | None = None,
        env_vars: Mapping[str, object] | None = None,
        override_discovery: bool = True,
    ) -> None:
        self.settings = settings
        self.env_vars = dict(env_vars or {})
        self._executor = RayExecutor(
            settings,
            cpus_per_worker=cpus_per_slot,
            use_gpu=use_gpu,
            gpus_per_worker=gpus_per_slot,
            min_workers=settings.min_num_proc,
            max_workers=settings.max_num_proc,
            reset_limit=settings.reset_limit,
            cooldown_range=settings.cooldown_range,
            elastic_timeout=settings.elastic_timeout,
            override_discovery=override_discovery,
        )

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: set[str] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: object,
    ) -> ElasticSettings:
        """Settings for an executor.

        Args:
            min_num_proc, max_num_proc, reset_limit, elastic_timeout: see :class:`ElasticSettings`.
            timeout_s, nics: see :class:`horovod.ray.settings.MiniSettings`.
            ssh_identity_file: not needed, since Ray starts the workers.
            min_np, max_np: what ``min_num_proc`` and ``max_num_proc`` were once called.
            kwargs: further attributes, such as ``cooldown_range``, ``verbose`` or ``discovery``.
        """
        for old, given in (("min_np", min_np), ("max_np", max_np)):
            if given is not None:
                new = old.replace("np", "num_proc")
                warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel=2)
        settings = ElasticSettings(
            timeout_s,
            nics=nics,
            min_num_proc=min_num_proc if min_np is None else min_np,
            max_num_proc=max_num_proc if max_np is None else max_np,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
        )
        for name, value in kwargs.items():
            setattr(settings, name, value)
        return settings

    def start(self) -> None:
        """Prepares a job; its workers come with :meth:`run`."""
        self._executor.shutdown()
        self._executor.start(extra_env_vars=self.env_vars)

    def run(
        self,
        worker_fn: Callable[[], object],
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """Calls ``worker_fn()`` on all ranks; see :meth:`horovod.ray.RayExecutor.run`."""
        return self._executor.run(worker_fn, callbacks=callbacks)
