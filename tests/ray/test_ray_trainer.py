"""HorovodTrainer on a real cluster of two nodes: Ray Train's own things work, and ranks are its."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.data
import ray.train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from tests.ray.ray_waits import START_S

import horovod.torch as hvd
from horovod.errors import UsageError
from horovod.ray import HorovodConfig, HorovodTrainer

pytestmark = [
    pytest.mark.usefixtures("nothing_is_left"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),  # of Ray about itself
]


def trainer_of(train: Any, folder: Path, config: Any = None, **more: Any) -> HorovodTrainer:
    failures = more.pop("max_failures", 0)
    return HorovodTrainer(
        train,
        train_loop_config=config,
        horovod_config=HorovodConfig(timeout_s=START_S),
        scaling_config=ScalingConfig(num_workers=3),
        run_config=RunConfig(
            storage_path=str(folder), failure_config=FailureConfig(max_failures=failures)
        ),
        **more,
    )


def places_and_shares(config: dict[str, Any]) -> None:
    import torch

    hvd.init()
    mine = ray.train.get_context()
    places = {
        "hvd": (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()),
        "ray": (
            mine.get_world_rank(),
            mine.get_world_size(),
            mine.get_local_rank(),
            mine.get_local_world_size(),
        ),
        "node": ray.get_runtime_context().get_node_id(),
        "secret": [name for name in os.environ if "SECRET" in name],
    }
    shard = ray.train.get_dataset_shard("numbers")
    rows = [row["id"] for row in shard.iter_rows()]
    total = hvd.allreduce(torch.tensor(sum(rows) * config["factor"]), op=hvd.Sum)
    everyone = hvd.allgather_object(places)
    checkpoint = None
    if hvd.rank() == 0:
        folder = Path(ray.train.get_context().get_experiment_name()).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "total").write_text(str(int(total)))
        checkpoint = Checkpoint.from_directory(folder)
    ray.train.report({"total": int(total), "places": everyone}, checkpoint=checkpoint)


def test_ranks_are_those_of_ray_train_with_its_data_reports_and_checkpoints(
    cluster: Any, tmp_path: Path
) -> None:
    numbers = ray.data.range(90, override_num_blocks=3)
    trainer = trainer_of(places_and_shares, tmp_path, {"factor": 2}, datasets={"numbers": numbers})
    result = trainer.fit()
    assert result.metrics["total"] == 2 * sum(range(90))
    places = result.metrics["places"]
    assert [each["hvd"] for each in places] == [each["ray"] for each in places]
    assert len({each["node"] for each in places}) == 2
    assert [each["secret"] for each in places] == [[]] * 3
    with result.checkpoint.as_directory() as folder:
        assert (Path(folder) / "total").read_text() == str(2 * sum(range(90)))


def fails_once(config: dict[str, Any]) -> dict[str, Any]:
    import torch

    hvd.init()
    marker = Path(config["marker"])
    again = marker.exists()
    hvd.barrier()
    if hvd.rank() == 1 and not again:
        marker.touch()
        raise ValueError("the second rank has had enough")
    return {"total": int(hvd.allreduce(torch.ones(1), op=hvd.Sum)), "again": again}


def test_a_failed_group_is_started_anew(cluster: Any, tmp_path: Path) -> None:
    config = {"marker": str(tmp_path / "marker")}
    result = trainer_of(fails_once, tmp_path, config, max_failures=1).fit()
    assert result.return_value == {"total": 3, "again": True}


def test_a_failure_names_the_rank_and_its_error(cluster: Any, tmp_path: Path) -> None:
    config = {"marker": str(tmp_path / "marker")}
    with pytest.raises(ray.train.TrainingFailedError) as caught:
        trainer_of(fails_once, tmp_path, config).fit()
    assert "the second rank has had enough" in str(caught.value)


def test_any_trainer_of_ray_train_takes_the_configuration() -> None:
    config = HorovodConfig(timeout_s=5, nics={"lo"})
    assert config.to_dict() == {"timeout_s": 5, "nics": ["lo"], "elastic_timeout_s": 600.0}
    with pytest.raises(UsageError, match="timeout_s is 0"):
        HorovodConfig(timeout_s=0)
    with pytest.raises(UsageError, match="one network interface"):
        HorovodConfig(nics={"lo", "eth0"})
