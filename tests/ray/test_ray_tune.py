"""Trials of Ray Tune whose workers are ranks, on a real cluster of two nodes."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray import tune

import horovod.torch as hvd
from horovod.errors import UsageError
from horovod.ray.tune import DistributedTrainableCreator, get_checkpoint, report

pytestmark = [
    pytest.mark.usefixtures("nothing_is_left"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),  # of Ray about itself
]


def counts(config: dict[str, Any], folder_of_all: str) -> None:
    """Three steps, each with a checkpoint; rank 1 of one trial fails once, in the third step.

    Rank 0 notes each step that Tune has accepted.
    """
    import torch

    hvd.init()
    marker, accepted = (Path(folder_of_all) / each for each in ("marker", str(config["value"])))
    begun, restored = 0, get_checkpoint()
    if restored is not None:
        with restored.as_directory() as folder:
            begun = int((Path(folder) / "deep" / "step").read_text())
    for step in range(begun, 3):
        fails = config["value"] == 20 and hvd.rank() == 1 and step == 2 and begun == 0
        if fails and not marker.exists():
            marker.touch()
            raise ValueError("the second rank of trial 20 has had enough")
        total = hvd.allreduce(torch.tensor(config["value"] + hvd.rank()), op=hvd.Sum)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "deep").mkdir()
            (Path(folder) / "deep" / "step").write_text(str(step + 1))
            report(
                {"total": int(total), "step": step, "size": hvd.size()},
                checkpoint=tune.Checkpoint.from_directory(folder),
            )
        if hvd.rank() == 0:
            with accepted.open("a") as file:
                print(step, file=file)
        hvd.barrier()  # so that no rank fails while another one still reports
    refused = ""
    try:
        report({"tensor": torch.ones(1)})
    except ValueError as error:
        refused = str(error)
    report({"step": 3, "refused": refused, "begun": begun, "nodes": hvd.cross_size()})


def test_trials_train_on_ranks_and_go_on_from_a_checkpoint(cluster: Any, tmp_path: Path) -> None:
    func = partial(counts, folder_of_all=str(tmp_path))
    tuner = tune.Tuner(
        DistributedTrainableCreator(func, num_hosts=2),
        param_space={"value": tune.grid_search([10, 20])},
        run_config=tune.RunConfig(
            storage_path=str(tmp_path), failure_config=tune.FailureConfig(max_failures=1), verbose=0
        ),
    )
    results = tuner.fit()
    assert results.num_errors == 0
    undisturbed, repeated = sorted(results, key=lambda each: each.config["value"])
    assert (undisturbed.metrics["begun"], repeated.metrics["begun"]) == (0, 2)
    for each in (undisturbed, repeated):
        value = each.config["value"]
        assert (tmp_path / str(value)).read_text().split() == ["0", "1", "2"]
        # When a trial is repeated, Tune goes on with its log as it was last synchronized.
        steps = each.metrics_dataframe.dropna(subset=["total"])
        assert set(steps["total"]) == {2 * value + 1}
        assert set(steps["size"]) == {2}
        assert list(steps["step"])[-1] == 2
        assert each.metrics["nodes"] == 2
        assert "Torch tensors as metrics" in each.metrics["refused"]  # as Tune says it
        with each.checkpoint.as_directory() as folder:
            assert (Path(folder) / "deep" / "step").read_text() == "3"


def test_wrong_use_is_explained() -> None:
    with pytest.raises(UsageError, match="num_hosts=0"):
        DistributedTrainableCreator(counts, num_hosts=0)
    with pytest.warns(DeprecationWarning, match="num_slots is called num_workers"):
        DistributedTrainableCreator(counts, num_slots=2)
    for function in (get_checkpoint, lambda: report({})):
        with pytest.raises(UsageError, match="not a rank of a trial"):
            function()
