"""A trainer of Ray Train whose workers are ranks of Horovod."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
import ray.util
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod._job.assigned import assigned
from horovod._rank import context
from horovod.errors import UsageError
from horovod.ray.job_actor import Found, JobActor, end_job, show_job
from horovod.ray.settings import MiniSettings
from horovod.ray.worker import BaseHorovodWorker

try:
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from horovod.ray import elastic_trainer
except ImportError as error:
    raise ImportError(
        "horovod.ray.trainer needs Ray Train of Ray 2.60 or newer: pip install 'ray[train]' "
        f"({error})"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ray.train import Checkpoint, DataConfig, Result, RunConfig, ScalingConfig
    from ray.train._internal.base_worker_group import BaseWorkerGroup

    from horovod._job.environment import Assignment

__all__ = ["HorovodConfig", "HorovodTrainer"]

_MOST_CHARACTERS = 500


@dataclasses.dataclass
class HorovodConfig(BackendConfig):  # type: ignore[misc]
    """Makes the workers of a trainer of Ray Train ranks; give it to any of its trainers.

    Attributes:
        timeout_s: how long ``hvd.init()`` waits for the other ranks, in seconds.
        nics: a network interface for the traffic between nodes; None for the one that leads to the
            driver.
        elastic_timeout_s: how long a job with ``num_workers=(min, max)`` waits for room for the
            fewest workers, in seconds.

    Raises:
        UsageError: a timeout is not above 0, or there are several interfaces.
    """

    timeout_s: float = 30.0
    nics: set[str] | None = None
    elastic_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("timeout_s", "elastic_timeout_s"):
            value = getattr(self, name)
            if not value > 0:
                raise UsageError(f"{name} is {value}, but must be above 0 seconds")
        if self.nics and len(self.nics) > 1:
            raise UsageError(f"nics={sorted(self.nics)}: ranks listen on one network interface")

    @property
    def backend_cls(self) -> type[Backend]:
        """The class that Ray Train calls at the start and at the end of a group of workers."""
        return _HorovodBackend

    @property
    def train_func_context(self) -> Callable[[], Any]:
        """The context that Ray Train puts around the training function of each worker."""
        return _in_job

    def to_dict(self) -> dict[str, Any]:
        """Return what Ray Train records of this configuration."""
        return {
            "timeout_s": self.timeout_s,
            "nics": sorted(self.nics or ()),
            "elastic_timeout_s": self.elastic_timeout_s,
        }


class HorovodTrainer(DataParallelTrainer):  # type: ignore[misc]
    """Trains on the workers of Ray Train, which are ranks: ``hvd.init()`` finds the others.

    The rank of Horovod is that of Ray Train, and so is the local rank. All else is as in every
    trainer of Ray Train: ``ray.train.report`` with metrics and checkpoints, which all ranks call
    equally often, ``ray.train.get_checkpoint()`` after a restart, ``get_dataset_shard``, and
    ``FailureConfig(max_failures=…)``, by which it starts the workers anew.

    Args:
        train_loop_per_worker: runs on each worker; takes nothing, or ``train_loop_config``.
        train_loop_config: what it is given.
        horovod_config: see :class:`HorovodConfig`.
        scaling_config: how many workers, with what resources. With ``num_workers=(min, max)`` they
            come and go with the nodes, while the others train on in their processes: the function
            uses ``hvd.elastic``, as on any elastic job.
        run_config: name, storage, failures and callbacks of the run.
        datasets: of Ray Data, by name; each worker gets a share of them.
        dataset_config: how they are shared.
        resume_from_checkpoint, metadata: as in other trainers, whose error says what to use.

    Example:
        >>> def train(config):
        ...     hvd.init()
        ...     ...
        ...     ray.train.report({"loss": loss})
        >>> trainer = HorovodTrainer(train, scaling_config=ScalingConfig(num_workers=4))
        >>> result = trainer.fit()
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        horovod_config: HorovodConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=horovod_config or HorovodConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=dict(datasets or {}),
            dataset_config=dataset_config,
            resume_from_checkpoint=resume_from_checkpoint,
            metadata=metadata,
        )

    def fit(self) -> Result:
        """Trains to the end.

        Returns:
            The last metrics and the checkpoints, and what the function returned on rank 0.

        Raises:
            ray.train.TrainingFailedError: ranks failed more often than the configuration of the run
                allows, or there was no room for them.
        """
        if not self.scaling_config.elasticity_enabled:
            return super().fit()
        horovod: HorovodConfig = self.backend_config
        tables = elastic_trainer.tables_of(self.datasets, self.data_config)
        return elastic_trainer.fit(
            self._get_train_func(),
            elastic_trainer.limits_of(self.scaling_config, horovod.elastic_timeout_s),
            MiniSettings(timeout_s=horovod.timeout_s, nics=horovod.nics),
            self.train_run_context,
            tables,
        )


class _HorovodBackend(Backend):  # type: ignore[misc]
    """Opens a job for each group of workers, beside the controller of Ray Train."""

    # Ranks find their own GPU by their local rank among all of the node.
    share_cuda_visible_devices = True

    def __init__(self) -> None:
        self._jobs: dict[int, Any] = {}

    def on_start(self, worker_group: BaseWorkerGroup, backend_config: HorovodConfig) -> None:
        """Gives each worker its place."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": 0, "scheduling_strategy": here}
        job = (
            ray.remote(JobActor)
            .options(**options)
            .remote(backend_config.timeout_s, min(backend_config.nics or {""}))
        )
        self._jobs[id(worker_group)] = job
        found = [Found(*each) for each in worker_group.execute(_where)]
        assignments: list[Assignment] = ray.get(job.assign.remote(found))
        show_job(job, {})
        ray.get(
            [
                worker_group.execute_single_async(index, _take_place, assignment)
                for index, assignment in enumerate(assignments)
            ]
        )

    def on_shutdown(self, worker_group: BaseWorkerGroup, backend_config: HorovodConfig) -> None:
        """Ends the job of a group."""
        job = self._jobs.pop(id(worker_group), None)
        if job is not None:
            end_job(job)


# The worker that this process is, once it has been told.
_worker: BaseHorovodWorker | None = None


def _where() -> tuple[str, str, int]:
    return BaseHorovodWorker().where()


def _take_place(assignment: Assignment) -> None:
    global _worker
    _worker = BaseHorovodWorker()
    _worker.take_place(assignment)


@contextmanager
def _in_job() -> Iterator[None]:
    """Around the training function: it takes part in the job, and leaves it at its end."""
    assignment = None if _worker is None else _worker.assignment
    if assignment is None:  # num_workers=0: Ray Train runs the function in the driver
        yield
        return
    with assigned(assignment):
        try:
            yield
        except BaseException as error:
            # The others learn why, instead of waiting.
            reason = f"it raised {type(error).__name__}: {error}"[:_MOST_CHARACTERS]
            context.current().shutdown(reason)
            raise
        context.shutdown()
