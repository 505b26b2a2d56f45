"""Logged values as metrics of an MLflow run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from horovod._train.logged.sink import describe, library
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._settings.destinations import Destination
    from horovod._train.logged.record import Run

_TAG = "horovod.run"


class MlflowRun:
    """The run that is active in the caller's thread, or else one of this job.

    A run of this job that exists already, because another process was rank 0 before, goes on.

    Args:
        destination: its place is a tracking URI, whose experiment "Default" has the run; without
            one, MLflow's own settings count.
        run: this job.

    Raises:
        UsageError: MLflow is not installed, or its server does not answer as it should.
    """

    def __init__(self, destination: Destination, run: Run) -> None:
        mlflow = library("mlflow", destination)
        self._entities = library("mlflow.entities", destination)
        client_class = library("mlflow.tracking", destination).MlflowClient
        active = None if destination.place else mlflow.active_run()
        self._is_own = active is None
        try:
            self._client = client_class(tracking_uri=destination.place or None)
            self._id = active.info.run_id if active else self._begin(mlflow, destination, run.name)
        except Exception as error:
            raise UsageError(f"HOROVOD_LOG names {destination}: {describe(error)}") from error

    def write(self, step: int, values: Mapping[str, float], at_s: float) -> None:
        """Send all values in one request."""
        metric, at_ms = self._entities.Metric, int(at_s * 1000)
        metrics = [metric(name, value, at_ms, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, *, failed: bool) -> None:
        """End the run, unless it is the program's."""
        if self._is_own:
            self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")

    def _begin(self, mlflow: Any, destination: Destination, name: str) -> str:
        if not destination.place:
            return _begin_by_settings(mlflow, name)
        default = self._client.get_experiment_by_name("Default")
        experiment = default.experiment_id if default else self._client.create_experiment("Default")
        for found in self._client.search_runs([experiment], f"tags.`{_TAG}` = '{name}'"):
            self._client.update_run(found.info.run_id, "RUNNING")
            return str(found.info.run_id)
        return str(
            self._client.create_run(experiment, tags={_TAG: name}, run_name=name).info.run_id
        )


def _begin_by_settings(mlflow: Any, name: str) -> str:
    """Begin a run, or go on with it, in the experiment that MLflow's settings name.

    In a thread of its own: MLflow has an active run for each, and that of the program is its own.
    """
    results: list[Any] = []

    def begin() -> None:
        try:
            found = mlflow.search_runs(
                filter_string=f"tags.`{_TAG}` = '{name}'", output_format="list"
            )
            if found:
                results.append(mlflow.start_run(run_id=found[0].info.run_id))
            else:
                results.append(mlflow.start_run(run_name=name, tags={_TAG: name}))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=begin, name="hvd-mlflow")
    thread.start()
    thread.join()
    if isinstance(results[0], Exception):
        raise results[0]
    return str(results[0].info.run_id)
