"""Metrics that a script reports of its run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import horovod
from horovod.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_rank_0_writes_what_counts_as_a_number_or_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    horovod.report_result(accuracy=1)  # in no experiment
    monkeypatch.setenv("EXPERIMENT_ID", "1")
    monkeypatch.setenv("HOROVOD_RANK", "1")
    horovod.report_result(accuracy=2)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("HOROVOD_RANK", "0")
    horovod.report_result(accuracy=np.float32(0.5), epoch=3, name="a", done=True)
    horovod.report_result(loss=np.ones(()))
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["metrics"] for line in lines] == [
        {"accuracy": 0.5, "epoch": 3, "name": "a", "done": True},
        {"loss": 1.0},
    ]


@pytest.mark.parametrize(
    ("variables", "reports"),
    [
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, True),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, False),
        ({"JOB_COMPLETION_INDEX": "1", "HOROVOD_SIZE": "2"}, False),
        ({"HOROVOD_ELASTIC": "1", "HOROVOD_RANK": "0"}, True),
        ({"HOROVOD_ELASTIC": "1", "HOROVOD_RANK": "2"}, False),
    ],
)
def test_only_rank_0_reports_whoever_has_told_it_its_rank(
    variables: dict[str, str], reports: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    for name, value in {**variables, "EXPERIMENT_ID": "1", "OUTPUT_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    horovod.report_result(accuracy=1)
    assert (tmp_path / "results.jsonl").exists() == reports


def test_an_elastic_worker_without_a_rank_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    for name, value in (("HOROVOD_ELASTIC", "1"), ("EXPERIMENT_ID", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    with pytest.raises(UsageError, match=r"call it after hvd\.init"):
        horovod.report_result(accuracy=1)
    assert not list(tmp_path.iterdir())


def test_a_link_in_the_place_of_the_results_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "results.jsonl").symlink_to(tmp_path / "precious")
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("EXPERIMENT_ID", "1")
    with pytest.raises(UsageError, match=r"results\.jsonl: it is a symbolic link"):
        horovod.report_result(accuracy=1)
    assert (tmp_path / "precious").read_text() == "precious"


def test_wrong_values_and_places_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="the result curve is a list"):
        horovod.report_result(curve=[1, 2])
    monkeypatch.setenv("EXPERIMENT_ID", "1")
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "gone"))
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    with pytest.raises(UsageError, match="cannot write the result to"):
        horovod.report_result(accuracy=1)
