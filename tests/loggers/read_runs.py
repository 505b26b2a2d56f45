"""Prints, as JSON, what TensorBoard, MLflow and trackio have of the runs in a folder.

By library: by run, by name, by step the value.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

Runs = dict[str, dict[str, dict[int, float]]]


def of_tensorboard(folder: Path) -> Runs:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs: Runs = {}
    for run in folder.iterdir():
        events = EventAccumulator(str(run))
        events.Reload()
        names = events.Tags()["scalars"]
        runs[run.name] = {
            name: {event.step: event.value for event in events.Scalars(name)} for name in names
        }
    return runs


def of_mlflow(uri: str) -> Runs:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    runs: Runs = {}
    for run in client.search_runs(["0"]):
        assert run.info.status == "FINISHED", run.info.status
        runs[run.info.run_name] = {
            name: {m.step: m.value for m in client.get_metric_history(run.info.run_id, name)}
            for name in run.data.metrics
        }
    return runs


def of_trackio(project: str) -> Runs:
    from trackio.sqlite_storage import SQLiteStorage

    runs: Runs = {}
    for run in SQLiteStorage.get_runs(project):
        values: dict[str, dict[int, float]] = defaultdict(dict)
        for record in SQLiteStorage.get_logs(project, run):
            names = record.keys() - {"step", "timestamp"}
            for name in names:
                values[name][record["step"]] = float(record[name])
        runs[run] = values
    return runs


if __name__ == "__main__":
    place = Path(sys.argv[1])
    found: dict[str, Any] = {
        "tensorboard": of_tensorboard(place / "tensorboard"),
        "mlflow": of_mlflow(f"file:{place / 'mlflow'}"),
        "trackio": of_trackio("joint"),
    }
    print(json.dumps(found))
