"""What the ranks of a TorchEstimator do, without Spark: ranks are threads, or processes."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("pyspark")
torch = pytest.importorskip("torch")
import dying_rank  # noqa: E402
from fsspec.core import url_to_fs  # noqa: E402
from spark_files import NUM_ROWS, data_in, run_in, steps_of_all_ranks, with_validation  # noqa: E402
from torch_reference import (  # noqa: E402
    RATE,
    after_steps,
    assert_same,
    make_layers,
    make_optimizer,
    one_process,
)

from horovod.errors import StartError, UsageError  # noqa: E402
from horovod.spark.common.data_mark import files_in, mark_of  # noqa: E402
from horovod.spark.torch.datamodule import DataModule, ParquetDataModule  # noqa: E402
from horovod.spark.torch.model_bytes import OptimizerRecord, model_bytes  # noqa: E402
from horovod.spark.torch.plain import loaded, saved  # noqa: E402
from horovod.spark.torch.training import TorchTask, _step, checkpoint_of, train  # noqa: E402
from horovod.testing import run_ranks  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


def task_in(folder: Path, **changes: Any) -> TorchTask:
    model = make_layers()
    task = TorchTask(
        data=data_in(folder, ParquetDataModule),
        run=run_in(folder),
        model=model_bytes(model),
        optimizer=OptimizerRecord.of(make_optimizer(model), model),
        loss=torch.nn.functional.mse_loss,
        loss_constructors=None,
        loss_weights=None,
        metrics=[],
        input_shapes=[[-1, 4]],
        label_shapes=None,
        compression=None,
        passes=1,
        epochs=2,
        minibatch=None,
    )
    return replace(task, **changes)


def train_on(size: int, task: TorchTask) -> dict[str, Any]:
    results = run_ranks(size, train, task)
    assert results[1:] == [None] * (size - 1)
    return checkpoint_of(results[0])


def test_two_ranks_train_as_one_process_would(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    state = train_on(2, task)
    assert_same(state, one_process(task, 2))
    assert [each["epoch"] for each in state["history"]] == [0, 1]
    assert state["history"][1]["train"]["loss"] < state["history"][0]["train"]["loss"]


def test_sample_weights_weigh_the_loss_of_each_row(tmp_path: Path) -> None:
    task = task_in(tmp_path, loss=torch.nn.MSELoss())
    task = replace(task, data=replace(task.data, weights="w"))
    assert_same(train_on(2, task), one_process(task, 2, by_row=True))


def test_gradients_of_several_batches_are_one_step(tmp_path: Path) -> None:
    task = task_in(tmp_path, passes=2)
    assert_same(train_on(2, task), one_process(task, 2))


def test_the_rest_of_an_epoch_is_a_step_too(tmp_path: Path) -> None:
    task = task_in(tmp_path, passes=3, epochs=1)
    task = replace(task, data=replace(task.data, train=replace(task.data.train, steps=4)))
    before = make_layers().state_dict()
    three = train_on(
        1,
        replace(
            task,
            run=run_in(tmp_path, "three"),
            data=replace(task.data, train=replace(task.data.train, steps=3)),
        ),
    )
    four = train_on(1, task)
    name = "0.weight"
    assert not torch.equal(three["model"][name], before[name])
    assert not torch.equal(four["model"][name], three["model"][name])


def test_the_rate_is_scaled_in_training_only_and_once_on_resume(tmp_path: Path) -> None:
    task = task_in(tmp_path, epochs=1)
    first = train_on(2, task)
    assert first["optimizer"]["param_groups"][0]["lr"] == RATE
    resumed = train_on(2, replace(task, epochs=2))
    assert resumed["optimizer"]["param_groups"][0]["lr"] == RATE
    whole = train_on(2, replace(task, epochs=2, run=run_in(tmp_path, "whole")))
    for name, value in whole["model"].items():
        torch.testing.assert_close(resumed["model"][name], value, rtol=0, atol=1e-12)
    assert resumed["history"] == whole["history"]


def test_a_run_that_has_all_its_epochs_is_returned_as_it_is_and_says_so(
    tmp_path: Path, capsys: Any
) -> None:
    task = task_in(tmp_path)
    history = train_on(2, task)["history"]
    assert "nothing is trained" not in capsys.readouterr().err
    assert train_on(2, task)["history"] == history
    said = "run 'r' has all of its 2 epochs: nothing is trained"
    assert capsys.readouterr().err.count(said) == 1


def test_a_checkpoint_of_another_training_is_refused_by_the_ranks(tmp_path: Path) -> None:
    task = task_in(tmp_path, epochs=1)
    train_on(2, replace(task, run=replace(task.run, description={"batch_size": "8"})))
    other = replace(task, run=replace(task.run, description={"batch_size": "9"}))
    with pytest.raises(UsageError, match="trains something else: batch_size was 8, and is 9"):
        run_ranks(2, train, other)


class Harmful:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    state = {"model": {}, "optimizer": {}, "history": Harmful(tmp_path / "made"), "run": "{}"}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    for data in (buffer.getvalue(), pickle.dumps(state), b"", b"PK"):
        task.run.save(data)
        with pytest.raises(UsageError, match=r"no TorchEstimator wrote, .* use another run_id"):
            run_ranks(1, train, task)
    assert not (tmp_path / "made").exists()


def test_checkpoints_hold_numbers_of_numpy_and_refuse_objects() -> None:
    module = torch.nn.BatchNorm1d(2)
    state = {
        "model": module.state_dict(),
        "rate": np.float64(0.5),
        "deep": [(1, np.bool_(True)), {"a": None, 3: "b"}],
        "kind": torch.float64,
    }
    found = loaded(saved(state), "test")
    assert found["model"]._metadata == state["model"]._metadata
    torch.nn.BatchNorm1d(2).load_state_dict(found["model"])
    assert (found["rate"], type(found["rate"])) == (0.5, float)
    assert found["deep"] == [(1, True), {"a": None, 3: "b"}]
    assert found["kind"] is torch.float64
    with pytest.raises(UsageError, match=r"^a\.b\[1\] is a builtins\.object, which a checkpoint"):
        saved({"a": {"b": [1, object()]}})


def test_ranks_train_on_no_data_but_those_they_were_started_for(tmp_path: Path) -> None:
    task = task_in(tmp_path)
    fs, inside = url_to_fs(task.data.train.path)
    mark = mark_of(files_in(fs, inside))
    marked = replace(task, data=replace(task.data, train=replace(task.data.train, mark=mark)))
    train_on(2, marked)
    shutil.copy(tmp_path / "train/0.parquet", tmp_path / "train/2.parquet")
    with pytest.raises(StartError, match=r"rank \d: the data in .*train are not those"):
        run_ranks(2, train, replace(marked, epochs=3))


def test_nothing_is_written_where_runs_are_not_saved(tmp_path: Path) -> None:
    state = train_on(2, task_in(tmp_path, run=run_in(tmp_path, saves=False)))
    assert len(state["history"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


def test_validation_and_metrics_are_over_all_rows_of_all_ranks(tmp_path: Path) -> None:
    def bias(output: Any, label: Any) -> Any:
        return (output - label).mean()

    task = task_in(tmp_path, metrics=[[bias], [torch.nn.functional.l1_loss]], epochs=1)
    task = replace(task, data=with_validation(task.data, tmp_path))
    state = train_on(2, task)
    model = make_layers()
    model.load_state_dict(state["model"])
    val = replace(task.data, train=task.data.val)
    rows = list(steps_of_all_ranks(val, 2, 1, whole_batches=False))
    x, y = (np.concatenate([each[name] for each in rows]) for name in "xy")
    assert len(x) == NUM_ROWS
    error = (model(torch.tensor(x)) - torch.tensor(y).reshape(-1, 1)).detach()
    measured = state["history"][0]["validation"]
    assert measured["loss"] == pytest.approx(float((error**2).mean()), abs=1e-12)
    assert measured["all_metrics"] == [
        {"group_0_y": pytest.approx(float(error.mean()), abs=1e-12)},
        {"group_1_y": pytest.approx(float(error.abs().mean()), abs=1e-12)},
    ]


def test_several_labels_have_losses_and_weights_of_their_own(tmp_path: Path) -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.number, self.kind = torch.nn.Linear(4, 1), torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return self.number(x), self.kind(x)

    model = Two()
    task = task_in(
        tmp_path,
        model=model_bytes(model),
        optimizer=OptimizerRecord.of(torch.optim.Adam(model.parameters(), lr=0.01), model),
        loss=[torch.nn.functional.mse_loss, torch.nn.functional.cross_entropy],
        loss_weights=[0.25, 0.75],
        metrics=[[lambda output, label: (output.argmax(1) == label).float().mean()]],
    )
    task = replace(task, data=replace(task.data, labels=["y", "c"]))
    task = replace(task, metrics=[])
    state = train_on(2, task)
    assert state["history"][1]["train"]["loss"] < state["history"][0]["train"]["loss"]


def test_an_epoch_is_told_of_in_a_line(tmp_path: Path, capsys: Any) -> None:
    task = task_in(tmp_path, metrics=[[torch.nn.functional.l1_loss]], epochs=1)
    task = replace(task, data=replace(with_validation(task.data, tmp_path), verbose=1))
    train_on(2, task)
    number = r"[\d.]+"
    line = f"loss {number}, group_0_y {number}"
    assert re.fullmatch(
        f"epoch 1/1: train {line}; validation {line}", capsys.readouterr().out.strip()
    )


def test_losses_can_be_made_on_the_ranks(tmp_path: Path) -> None:
    def make(model: Any, torch: Any, **others: Any) -> Any:
        assert {"hvd", "optimizer"} <= set(others)
        return torch.nn.MSELoss()

    task = task_in(tmp_path, loss=None, loss_constructors=[make])
    assert_same(train_on(2, task), one_process(task, 2))


def test_a_step_of_ones_own_takes_the_place_of_the_usual_one(tmp_path: Path) -> None:
    def step(
        model: Any,
        optimizer: Any,
        transform_outputs: Any,
        loss_fn: Any,
        inputs: Any,
        labels: Any,
        sample_weights: Any,
        passes: int,
        index: int,
    ) -> Any:
        optimizer.zero_grad()
        outputs = model(*inputs)
        loss = loss_fn(*transform_outputs(outputs, labels), sample_weights)
        loss.backward()
        optimizer.step()
        return outputs, loss

    task = task_in(tmp_path, minibatch=step)
    assert_same(train_on(2, task), one_process(task, 2))


def test_rows_can_be_transformed(tmp_path: Path) -> None:
    def doubled(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": row["x"] / 2, "y": row["y"]}

    task = task_in(tmp_path)
    task = replace(task, data=replace(task.data, transform=doubled))
    assert_same(train_on(2, task), one_process(task, 2))


def test_a_data_module_of_the_user_feeds_the_ranks(tmp_path: Path) -> None:
    class Module(DataModule):
        def train_data(self) -> Any:
            for _ in range(self.num_train_epochs * self.steps_per_epoch_train):
                yield {"x": np.full((5, 4), self.cur_shard), "y": np.zeros(5)}

        def val_data(self) -> Any:
            return iter(())

    task = task_in(tmp_path)
    state = train_on(2, replace(task, data=replace(task.data, module=Module)))
    assert [each["epoch"] for each in state["history"]] == [0, 1]


def test_a_wrong_shape_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a row of 4 numbers does not fit the shape \[-1, 5\]"):
        run_ranks(1, train, task_in(tmp_path, input_shapes=[[-1, 5]]))


def elastic_on_two(folder: Path, commit_every: int, **options: Any) -> dict[str, Any]:
    """Trains 4 epochs on two ranks, of which one dies in the second epoch."""
    awaits = "cooldown_range" in options

    def step(*args: Any) -> Any:
        dying_rank.step(folder, awaits=awaits)
        return _step(*args)

    task = task_in(folder, epochs=4, minibatch=step)
    results = dying_rank.on_ranks(folder, train, task, commit_every, **options)
    state = checkpoint_of(results[0])
    assert [each["epoch"] for each in state["history"]] == [0, 1, 2, 3]
    assert state["optimizer"]["param_groups"][0]["lr"] == RATE
    assert checkpoint_of((folder / "runs/r/checkpoint").read_bytes())["history"] == state["history"]
    return state


def test_an_epoch_in_which_a_rank_is_lost_begins_anew_on_the_others(tmp_path: Path) -> None:
    state = elastic_on_two(tmp_path, commit_every=100)
    assert dying_rank.sizes_of_survivor(tmp_path) == [2] * 7 + [1] * 24
    assert_same(state, after_steps(tmp_path, (2, range(1), (), 4), (1, range(1, 4), (), 24)))


def test_an_epoch_goes_on_from_the_last_commit_in_it(tmp_path: Path) -> None:
    state = elastic_on_two(tmp_path, commit_every=1)
    assert dying_rank.sizes_of_survivor(tmp_path) == [2] * 7 + [1] * 20
    parts = (2, range(2), (), 6), (1, range(1, 4), [(2, 2)], 20)
    assert_same(state, after_steps(tmp_path, *parts))


def test_a_rank_that_comes_takes_part_from_the_next_commit_on(tmp_path: Path) -> None:
    state = elastic_on_two(tmp_path, commit_every=100, cooldown_range=(1, 1))
    assert dying_rank.sizes_of_survivor(tmp_path) == [2] * 7 + [1] * 16 + [2] * 4
    parts = (2, range(1), (), 4), (1, range(1, 3), (), 16), (2, range(3, 4), (), 4)
    assert_same(state, after_steps(tmp_path, *parts))


def test_ranks_weigh_as_many_rows_as_they_have(tmp_path: Path) -> None:
    """Of three ranks, one has a single row in the last step of an epoch, and two have none."""
    task = task_in(tmp_path)
    task = replace(task, data=replace(task.data, train=replace(task.data.train, batch_size=7)))
    results = dying_rank.on_ranks(tmp_path, train, task, commit_every=100, num_proc=3)
    assert_same(checkpoint_of(results[0]), one_process(task, 3, whole_batches=False))
