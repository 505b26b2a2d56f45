"""HorovodTrainer with ``num_workers=(min, max)``: ranks are lost, and the others train on."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.data
import ray.train
from ray.train import (
    Checkpoint,
    CheckpointConfig,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    UserCallback,
)
from tests.ray.elastic_training import broadcast_object
from tests.ray.ray_waits import START_S

from horovod._rank import context
from horovod._train import objects
from horovod._train.elastic.run import run
from horovod._train.elastic.state import ObjectState
from horovod.errors import UsageError
from horovod.ray import HorovodConfig, HorovodTrainer
from horovod.ray.train_functions import Table, pieces_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*")

EPOCHS = 3


def trainer_of(train: Any, folder: Path, config: Any, **more: Any) -> HorovodTrainer:
    return HorovodTrainer(
        train,
        train_loop_config=config,
        horovod_config=HorovodConfig(START_S, elastic_timeout_s=240),
        scaling_config=ScalingConfig(num_workers=(2, 3), resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name="elastic", storage_path=str(folder), **more.pop("run", {})),
        **more,
    )


def gathered(value: Any) -> list[Any]:
    return objects.allgather_object(context.global_group(), value, "of the test")


def loses_a_rank(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The last of three ranks ends itself in the second epoch."""
    context.init()

    @run
    def train(state: ObjectState) -> list[dict[str, Any]]:
        while state.epoch < EPOCHS:
            mine = ray.train.get_context()
            name = "whole" if state.epoch == 2 else "numbers"
            rows = [row["id"] for row in ray.train.get_dataset_shard(name).iter_rows()]
            if state.epoch == 1 and mine.get_world_rank() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            told = {
                "rank": (mine.get_world_rank(), mine.get_local_rank(), mine.get_node_rank()),
                "size": mine.get_world_size(),
                "pid": os.getpid(),
                "total": sum(rows),
            }
            state.told = [*state.told, gathered(told)]
            checkpoint = None
            folder = Path(f"{config['folder']}/{state.epoch}-{context.rank()}")
            if context.rank() < 2:  # the files of two ranks become one checkpoint
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"of-{context.rank()}").write_text(str(state.epoch))
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report({"epoch": state.epoch, "rank": context.rank()}, checkpoint=checkpoint)
            state.epoch += 1
            state.commit()
        return list(state.told)

    told: list[dict[str, Any]] = train(
        ObjectState(broadcast_object, context.rank, epoch=0, told=[])
    )
    return told


class Noted(UserCallback):  # type: ignore[misc]
    """Notes what Ray Train's callbacks are told."""

    def __init__(self) -> None:
        self.reports: list[tuple[list[int], bool]] = []
        self.failures: list[dict[int, BaseException]] = []

    def after_report(self, run_context: Any, metrics: list[Any], checkpoint: Any) -> None:
        self.reports.append(([each.get("rank") for each in metrics], checkpoint is not None))

    def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
        self.failures.append(worker_exceptions)


@pytest.mark.usefixtures("nothing_is_left")
def test_the_others_train_on_with_reports_checkpoints_and_shares(
    cluster: Any, tmp_path: Path
) -> None:
    noted = Noted()
    result = trainer_of(
        loses_a_rank,
        tmp_path / "storage",
        {"folder": str(tmp_path / "local")},
        run={"checkpoint_config": CheckpointConfig(num_to_keep=2), "callbacks": [noted]},
        datasets={
            "numbers": ray.data.range(90, override_num_blocks=2),
            "whole": ray.data.range(7, override_num_blocks=1),
        },
        dataset_config=ray.train.DataConfig(datasets_to_split=["numbers"]),
    ).fit()
    epochs = result.return_value
    assert [[each["size"] for each in epoch] for epoch in epochs] == [[3] * 3, [2] * 2, [2] * 2]
    pids = [[each["pid"] for each in epoch] for epoch in epochs]
    assert pids == [pids[0], pids[0][:2], pids[0][:2]]
    totals = [sum(each["total"] for each in epoch) for epoch in epochs]
    assert totals == [sum(range(90)), sum(range(90)), 2 * sum(range(7))]
    assert [each["rank"][0] for each in epochs[0]] == [0, 1, 2]
    assert result.metrics == {"epoch": EPOCHS - 1, "rank": 0}
    assert [metrics["epoch"] for _, metrics in result.best_checkpoints] == [1, 2]
    with result.checkpoint.as_directory() as folder:
        found = {path.name: path.read_text() for path in Path(folder).iterdir()}
    assert found == {"of-0": "2", "of-1": "2"}
    assert len(list((tmp_path / "storage" / "elastic").glob("checkpoint_*/"))) == 2
    assert Result.from_path(result.path).metrics == result.metrics
    assert noted.reports == [([0, 1, 2], True)] + [([0, 1], True)] * 2
    assert noted.failures == []


def fails_once(config: dict[str, Any]) -> str:
    import ray.train.collective

    context.init()
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            return (Path(folder) / "state").read_text()
    folder = Path(config["folder"]) / str(context.rank())
    folder.mkdir(parents=True)
    (folder / "state").write_text("as it was")
    mine = Checkpoint.from_directory(folder) if context.rank() == 0 else None
    ray.train.report({"loss": 1.0}, checkpoint=mine)
    ray.train.collective.barrier()
    raise ValueError(f"enough of {ray.train.collective.broadcast_from_rank_zero('this')}")


@pytest.mark.usefixtures("nothing_is_left")
def test_if_all_ranks_fail_the_run_goes_on_from_its_checkpoint(
    cluster: Any, tmp_path: Path
) -> None:
    noted = Noted()
    config = {"folder": str(tmp_path / "1")}
    run_config = {"failure_config": FailureConfig(max_failures=1), "callbacks": [noted]}
    result = trainer_of(fails_once, tmp_path / "one", config, run=run_config).fit()
    assert result.return_value == "as it was"
    assert [str(error) for each in noted.failures for error in each.values()] == ["enough of this"]
    config = {"folder": str(tmp_path / "2")}
    with pytest.raises(ray.train.WorkerGroupError, match="it raised ValueError") as caught:
        trainer_of(fails_once, tmp_path / "two", config).fit()
    assert "enough of this" in str(caught.value)
    assert [type(error) for error in caught.value.worker_failures.values()] == [ValueError]


def test_rows_of_ranks_are_equally_many_whatever_the_blocks() -> None:
    table = Table([], [4, 0, 3, 4], is_split=True)
    assert [table.rows_of(rank, 3) for rank in range(3)] == [(0, 3), (3, 6), (6, 9)]
    assert pieces_of(table.num_rows, 3, 6) == [(0, 3, 1), (2, 0, 2)]
    assert pieces_of(table.num_rows, 6, 9) == [(2, 2, 1), (3, 0, 2)]
    assert pieces_of(table.num_rows, 2, 2) == []
    assert replace(table, is_split=False).rows_of(1, 3) == (0, 11)


def test_what_an_elastic_run_cannot_do_is_said(cluster: Any, tmp_path: Path) -> None:
    trainer = HorovodTrainer(
        fails_once,
        scaling_config=ScalingConfig(num_workers=(1, 2), resources_per_worker={"magic": 1}),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    with pytest.raises(UsageError, match="'magic' is given, too"):
        trainer.fit()
    trainer = trainer_of(fails_once, tmp_path, {}, run={"worker_runtime_env": {"pip": ["x"]}})
    with pytest.raises(UsageError, match=r"has pip.*ray.init"):
        trainer.fit()
    with pytest.raises(UsageError, match="elastic_timeout_s is 0"):
        HorovodConfig(elastic_timeout_s=0)
