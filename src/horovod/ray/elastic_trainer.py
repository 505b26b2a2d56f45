"""A run of :class:`horovod.ray.HorovodTrainer` whose ranks come and go while others train on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.train import Checkpoint, UserCallback, WorkerGroupError
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.training_report import _TrainingReport
from ray.train.v2.api.result import Result

from horovod.errors import RankFailedError, UsageError
from horovod.ray.elastic_workers import ElasticWorkers
from horovod.ray.settings import Limits, MiniSettings, rules_of
from horovod.ray.train_functions import Run, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ray.train import DataConfig, RunConfig, ScalingConfig

_logger = logging.getLogger(__name__)


def fit(
    function: Callable[[], object],
    limits: Limits,
    settings: MiniSettings,
    run_context: Any,
    tables: Mapping[str, Table],
) -> Result:
    """Train with as many ranks as the limits allow.

    Args:
        function: the training function.
        limits: how many workers, with what resources; see :func:`limits_of`.
        settings: how ranks find each other.
        run_context: of Ray Train, with the configuration of the run.
        tables: see :func:`tables_of`.

    Raises:
        WorkerGroupError: the ranks failed more often than ``FailureConfig(max_failures=…)`` allows.
        UsageError: the resources of a worker are of a kind that is not there.
    """
    config: RunConfig = run_context.run_config
    storage = config.storage_context
    checkpoints = CheckpointManager(config.checkpoint_config, storage)
    reports = _Reports(checkpoints, config, run_context)
    workers = ElasticWorkers(limits, settings, _variables_of(config))
    num_failures = 0
    while True:
        run = Run(storage, reports.latest, tables)
        try:
            results = workers.run(partial(_train, run, function), [reports])
        except RankFailedError as error:
            num_failures += 1
            failure = WorkerGroupError(str(error), {error.rank: error.__cause__ or error})
            reports.tell_of(failure)
            most = config.failure_config.max_failures
            if 0 <= most < num_failures:
                raise failure from error
            _logger.warning("training starts anew from its last checkpoint: %s", error)
            continue
        result = Result._from_checkpoint_manager(checkpoints, storage)
        metrics = result.metrics if result.metrics is not None else reports.metrics
        return replace(result, metrics=metrics, return_value=results[0] if results else None)


def tables_of(datasets: Mapping[str, Any], config: DataConfig) -> dict[str, Table]:
    """Reads the datasets of a trainer into the object store, since no worker has CPUs to do so.

    Args:
        datasets: of Ray Data, or functions that make them, by name.
        config: says which of them are split.
    """
    split = config._datasets_to_split
    tables = {}
    for name, given in datasets.items():
        dataset = given() if callable(given) else given
        num_rows_of = ray.remote(num_cpus=0)(_num_rows)
        blocks = dataset.materialize().to_arrow_refs()
        counts = ray.get([num_rows_of.remote(block) for block in blocks])
        tables[name] = Table(blocks, counts, split == "all" or name in split)
    return tables


def _num_rows(table: Any) -> int:
    return int(table.num_rows)


def _train(run: Run, function: Callable[[], Any], _: None) -> Any:
    return run.train(function)


def limits_of(scaling: ScalingConfig, elastic_timeout_s: float) -> Limits:
    """Return how many workers an elastic run may have, with what resources.

    Args:
        scaling: with ``num_workers=(min, max)``.
        elastic_timeout_s: how long the job waits for the smaller number.

    Raises:
        UsageError: the resources of a worker are of a kind that elastic jobs do not know.
    """
    further = sorted(scaling.additional_resources_per_worker)
    if further or scaling.label_selector:
        asked = ", ".join(map(repr, further)) or "label_selector"
        raise UsageError(
            f"ScalingConfig: with num_workers={scaling.num_workers} a worker has CPUs and GPUs, "
            f"but {asked} is given, too; leave it out, or give a fixed number of workers"
        )
    least, most = scaling.num_workers
    rules = rules_of(least, most, None, None, elastic_timeout_s)
    return Limits(rules, scaling.num_cpus_per_worker, scaling.num_gpus_per_worker, True)


def _variables_of(config: RunConfig) -> dict[str, str]:
    """Return the variables of ``worker_runtime_env``, the only part that elastic workers get.

    Raises:
        UsageError: there is more than variables.
    """
    runtime_env = dict(config.worker_runtime_env)
    variables = runtime_env.pop("env_vars", None) or {}
    if runtime_env:
        raise UsageError(
            f"RunConfig(worker_runtime_env=…) has {', '.join(sorted(runtime_env))}; with "
            "num_workers=(min, max) give it to ray.init(runtime_env=…), and here only env_vars"
        )
    return dict(variables)


class _Reports:
    """Hears what rank 0 reports: keeps checkpoints and calls the callbacks of the run.

    Args:
        checkpoints: of the run.
        config: of the run.
        run_context: what callbacks are given.

    Attributes:
        metrics: the last ones that were reported.
    """

    def __init__(self, checkpoints: CheckpointManager, config: RunConfig, run_context: Any) -> None:
        self.metrics: dict[str, Any] | None = None
        self._checkpoints = checkpoints
        self._storage = config.storage_context
        self._callbacks = [
            callback for callback in config.callbacks if isinstance(callback, UserCallback)
        ]
        self._run_context = run_context

    @property
    def latest(self) -> Checkpoint | None:
        """The last checkpoint that was reported."""
        result = self._checkpoints.latest_checkpoint_result
        return None if result is None else result.checkpoint

    def __call__(self, item: dict[str, Any]) -> None:
        """Takes what one call of ``ray.train.report`` has sent; others belong to nobody."""
        if "metrics" not in item:
            return
        self.metrics = item["metrics"][0]
        checkpoint = None
        if item["checkpoint"]:
            checkpoint = Checkpoint(item["checkpoint"], self._storage.storage_filesystem)
        report = _TrainingReport(checkpoint, self.metrics, False)
        asyncio.run(_keep(self._checkpoints, report))
        for callback in self._callbacks:
            callback.after_report(self._run_context, item["metrics"], checkpoint)

    def tell_of(self, failure: WorkerGroupError) -> None:
        """Tells the callbacks that ranks have failed."""
        for callback in self._callbacks:
            callback.after_exception(self._run_context, failure.worker_failures)


async def _keep(checkpoints: CheckpointManager, report: _TrainingReport) -> None:
    """In a loop of its own, since Ray tells others of it on the loop of its controller."""
    checkpoints.after_report(report, [report.metrics])
