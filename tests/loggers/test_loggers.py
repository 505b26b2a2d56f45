"""One run in each library for a job of four ranks, with the values of one process on all data."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
from joint_training import ROWS, STEPS, train_alone

if TYPE_CHECKING:
    from pathlib import Path

    from environments import Run

# Off the network, and with MLflow's files, which it wants to be asked for.
OFFLINE = {"HF_HUB_OFFLINE": "1", "MLFLOW_ALLOW_FILE_STORE": "true", "TRACKIO_DIR": ""}


def test_one_run_with_the_values_of_one_process(
    run_ranks: Run, run_python: Run, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    variables = {**OFFLINE, "TRACKIO_DIR": str(tmp_path / "trackio")}
    places = f"tensorboard:{tmp_path / 'tensorboard'},mlflow:file:{tmp_path / 'mlflow'}"
    destinations = f"{places},trackio:joint,jsonl:{tmp_path / 'metrics.jsonl'}"
    job = run_ranks(len(ROWS), "joint_training.py", HOROVOD_LOG=destinations, **variables)
    assert job.returncode == 0, job.stdout + job.stderr
    folder = pytestconfig.rootpath / "tests" / "loggers"
    read = run_python(folder / "read_runs.py", tmp_path, **variables)
    assert read.returncode == 0, read.stdout + read.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    name = lines[0]["run"]
    expected = train_alone()
    for library, runs in json.loads(read.stdout.splitlines()[-1]).items():
        assert list(runs) == [name], library
        (nothing,) = runs[name].pop("nothing").values()
        assert math.isnan(nothing), library
        assert runs[name].keys() == expected.keys(), library
        for metric, values in expected.items():
            found = {int(step): value for step, value in runs[name][metric].items()}
            assert found == pytest.approx(values, rel=1e-6), (library, metric)
    assert [line["step"] for line in lines] == [10 * (i // 2) for i in range(2 * STEPS + 1)]
    in_lines = {line["step"]: line["values"]["loss"] for line in lines if "loss" in line["values"]}
    assert in_lines == pytest.approx(expected["loss"], rel=1e-6)


def test_sinks_in_trouble(run_python: Run, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    script = pytestconfig.rootpath / "tests" / "loggers" / "sink_cases.py"
    done = run_python(script, tmp_path, **OFFLINE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 5
