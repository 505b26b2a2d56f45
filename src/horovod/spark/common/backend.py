"""Backends that run the training function of estimators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from horovod._job.environment import without_job
from horovod._settings.config import inherited_environment
from horovod.runner.system.environment import without_own
from horovod.spark.elastic import limits, run_elastic
from horovod.spark.running import run
from horovod.spark.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Backend", "SparkBackend", "default_num_proc"]

# They lead into the driver's JVM, which no rank may enter.
_OF_DRIVER = ("PYSPARK_GATEWAY_", "PYSPARK_DRIVER_", "_PYSPARK_DRIVER_")


class Backend(ABC):
    """Runs a function on several ranks. Any object with these methods may take its place."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> list[Any]:
        """Calls ``fn(*args, **kwargs)`` on all ranks.

        Args:
            fn, args, kwargs: the call.
            env: variables of the ranks.

        Returns:
            The results in the order of ranks.
        """

    @abstractmethod
    def num_processes(self) -> int:
        """Return the number of ranks."""


class SparkBackend(Backend):
    """Ranks in tasks of the Spark application.

    Args:
        num_proc: how many; None for :func:`default_num_proc`.
        env: variables of the ranks; None for those of the driver that hold on other hosts.
        min_num_proc, max_num_proc: the fewest ranks with which the job goes on, and the most; with
            one of them, ranks come and go as in :func:`horovod.spark.run_elastic`.
        kwargs: further arguments of :func:`horovod.spark.run`, or of
            :func:`horovod.spark.run_elastic`.

    Raises:
        UsageError: the numbers make no sense, or there is no session of Spark to ask for one.
    """

    def __init__(
        self,
        num_proc: int | None = None,
        env: Mapping[str, str | None] | None = None,
        min_num_proc: int | None = None,
        max_num_proc: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._num_proc = default_num_proc() if num_proc is None else num_proc
        self._limits: tuple[int, int] | None = None
        if min_num_proc is not None or max_num_proc is not None:
            self._limits = limits(self._num_proc, min_num_proc, max_num_proc, "SparkBackend")
        self._env = None if env is None else dict(env)
        self._kwargs = kwargs

    def run(
        self,
        fn: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> list[Any]:
        """Calls ``fn(*args, **kwargs)`` on all ranks.

        Args:
            fn, args, kwargs: the call.
            env: variables of the ranks, beside those of this backend.

        Raises:
            RankFailedError, StartError, UsageError: see :func:`horovod.spark.run`.

        Returns:
            The results in the order of ranks; of an elastic job, of those at its end.
        """
        own = _driver_environment() if self._env is None else self._env
        merged = {**own, **(env or {})}
        # What hides GPUs from the driver is not to hide them from the ranks.
        merged.pop("CUDA_VISIBLE_DEVICES", None)
        options = {"num_proc": self._num_proc, "env": merged, **self._kwargs}
        if self._limits is None:
            return run(fn, args, kwargs, **options)
        fewest, most = self._limits
        return run_elastic(fn, args, kwargs, min_num_proc=fewest, max_num_proc=most, **options)

    def num_processes(self) -> int:
        """Return the number of ranks at the beginning of an elastic job."""
        return self._num_proc

    @property
    def is_elastic(self) -> bool:
        """Whether ranks may come and go."""
        return self._limits is not None


def default_num_proc() -> int:
    """The default parallelism of the Spark application.

    Raises:
        UsageError: there is no session of Spark.
    """
    return Session("default_num_proc").default_parallelism()


def _driver_environment() -> dict[str, str | None]:
    environ = without_own(without_job(inherited_environment()))
    return {name: text for name, text in environ.items() if not name.startswith(_OF_DRIVER)}
