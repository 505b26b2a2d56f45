"""What the ranks of a Lightning estimator do, without Spark: each rank is a process.

Lightning takes seconds to load, so the same two processes do all trainings.
"""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("lightning")
torch = pytest.importorskip("torch")
import dying_rank  # noqa: E402
from spark_files import data_in, run_in, with_validation  # noqa: E402
from torch_reference import (  # noqa: E402
    RATE,
    after_steps,
    assert_same,
    make_layers,
    make_optimizer,
    one_process,
)

from horovod.errors import UsageError  # noqa: E402
from horovod.spark.common.datamodule import ParquetDataModule  # noqa: E402
from horovod.spark.lightning import TorchEstimator, TorchModel  # noqa: E402
from horovod.spark.lightning.library import library_of  # noqa: E402
from horovod.spark.lightning.training import LightningTask, train  # noqa: E402
from horovod.spark.torch.model_bytes import OptimizerRecord, model_bytes  # noqa: E402
from horovod.spark.torch.plain import loaded  # noqa: E402
from horovod.testing import run_ranks  # noqa: E402


def make_module(**options: Any) -> Any:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, rate: float = RATE, kind: Any = None) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layers = make_layers()

        def forward(self, x: Any) -> Any:
            return self.layers(x)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = ((self(batch["x"]) - batch["y"].reshape(-1, 1)) ** 2).mean()
            self.log("loss", loss, on_epoch=True, on_step=False)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            loss = ((self(batch["x"]) - batch["y"].reshape(-1, 1)) ** 2).mean()
            self.log("val_loss", loss)

        def configure_optimizers(self) -> Any:
            return make_optimizer(self)

    return Module(**options)


def task_in(folder: Path, model: Any, **changes: Any) -> LightningTask:
    task = LightningTask(
        data=data_in(folder, ParquetDataModule),
        run=run_in(folder),
        model=model_bytes(model),
        optimizer=None,
        loss=None,
        loss_weights=None,
        callbacks=[],
        input_shapes=[[-1, 4]],
        label_shapes=None,
        compression=None,
        passes=1,
        epochs=2,
        options={"logger": False},
    )
    return replace(task, **changes)


def train_each(tasks: list[LightningTask]) -> list[Any]:
    """Train one after the other; the text of a refusal takes the place of a model."""
    found: list[Any] = []
    for task in tasks:
        try:
            found.append(train(task))
        except UsageError as error:
            found.append(str(error))
    return found


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def write_harmful(task: LightningTask, folder: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"epoch": 0, "state_dict": Harmful(folder / "made")}, buffer)
    task.run.save(buffer.getvalue())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[LightningTask, Any]]:
    """What two ranks were to do, and what came of it."""
    folder = tmp_path_factory.mktemp("module")
    # An object among the hyperparameters is left out of checkpoints.
    begun = task_in(folder, make_module(kind=torch.nn.MSELoss), epochs=1, passes=2)
    begun = replace(begun, data=with_validation(begun.data, folder))
    model = make_layers()
    optimizer = make_optimizer(model)
    plain = task_in(
        tmp_path_factory.mktemp("plain"),
        model,
        optimizer=OptimizerRecord.of(optimizer, model),
        loss=torch.nn.functional.mse_loss,
    )
    harmful = replace(begun, run=run_in(folder, "harmful"))
    write_harmful(harmful, folder)
    resumed = replace(begun, epochs=2)
    other = replace(resumed, run=replace(begun.run, description={"rate": "2"}))
    tasks = {"begun": begun, "resumed": resumed, "other": other, "plain": plain, "bad": harmful}
    first, second = run_ranks(2, train_each, list(tasks.values()), processes=True, timeout=240)
    assert second == [each if isinstance(each, str) else None for each in first]
    return {
        name: (task, state if isinstance(state, str) else torch.load(io.BytesIO(state)))
        for (name, task), state in zip(tasks.items(), first, strict=True)
    }


def test_two_ranks_train_and_resume_as_one_process_would(trained: Any) -> None:
    task, state = trained["begun"]
    assert_same(state, one_process(task, 2), "layers.")
    assert set(state["metrics"]) == {"loss", "val_loss"}
    task, state = trained["resumed"]
    assert_same(state, one_process(task, 2), "layers.")


def test_a_checkpoint_runs_no_code_and_is_that_of_its_training(trained: Any) -> None:
    assert "trains something else: rate was not there, and is 2" in trained["other"][1]
    task, refusal = trained["bad"]
    assert "objects that are not loaded" in refusal
    folder = Path(task.data.train.path).parent
    assert not (folder / "made").exists()
    saved = loaded((folder / "runs/r/checkpoint").read_bytes(), "test")
    assert "hyper_parameters" not in saved


def test_a_plain_model_is_trained_too(trained: Any) -> None:
    task, state = trained["plain"]
    assert_same(state, one_process(task, 2))


def elastic_on_two(folder: Path, commit_every: int, **options: Any) -> dict[str, Any]:
    """Train 4 epochs on two ranks, of which one dies in the second epoch."""
    awaits = "cooldown_range" in options
    module = make_module()
    plain_step = type(module).training_step

    def training_step(self: Any, batch: Any, index: int) -> Any:
        dying_rank.step(folder, awaits=awaits)
        return plain_step(self, batch, index)

    type(module).training_step = training_step
    task = task_in(folder, module, epochs=4)
    results = dying_rank.on_ranks(folder, train, task, commit_every, **options)
    saved = loaded((folder / "runs/r/checkpoint").read_bytes(), "test")
    assert saved["epoch"] == 3
    assert saved["optimizer_states"][0]["param_groups"][0]["lr"] == RATE
    state: dict[str, Any] = torch.load(io.BytesIO(results[0]))
    assert set(state["metrics"]) == {"loss"}
    return state


def test_an_epoch_goes_on_from_the_last_commit_in_it(tmp_path: Path) -> None:
    state = elastic_on_two(tmp_path, commit_every=1)
    assert dying_rank.sizes_of_survivor(tmp_path) == [2] * 7 + [1] * 20
    parts = (2, range(2), (), 6), (1, range(1, 4), [(2, 2)], 20)
    assert_same(state, after_steps(tmp_path, *parts), "layers.")


def test_a_rank_that_comes_takes_part_from_the_next_commit_on(tmp_path: Path) -> None:
    state = elastic_on_two(tmp_path, commit_every=100, cooldown_range=(1, 1))
    assert dying_rank.sizes_of_survivor(tmp_path) == [2] * 7 + [1] * 16 + [2] * 4
    parts = (2, range(1), (), 4), (1, range(1, 3), (), 16), (2, range(3, 4), (), 4)
    assert_same(state, after_steps(tmp_path, *parts), "layers.")


def test_ranks_weigh_as_many_rows_as_they_have(tmp_path: Path) -> None:
    """Of three ranks, one has a single row in the last step of an epoch, and two have none."""
    task = task_in(tmp_path, make_module())
    task = replace(task, data=replace(task.data, train=replace(task.data.train, batch_size=7)))
    results = dying_rank.on_ranks(tmp_path, train, task, commit_every=100, num_proc=3)
    state = torch.load(io.BytesIO(results[0]))
    assert_same(state, one_process(task, 3, whole_batches=False), "layers.")


def test_a_module_has_its_own_optimizer_and_loss() -> None:
    options = {"store": object(), "feature_cols": ["x"], "label_cols": ["y"]}
    with pytest.raises(UsageError, match="a LightningModule has its own loss"):
        TorchEstimator(model=make_module(), loss=print, **options)._check_params()
    with pytest.raises(UsageError, match="a plain model of PyTorch needs optimizer"):
        TorchEstimator(model=make_layers(), loss=print, **options)._check_params()
    TorchEstimator(model=make_module(), **options)._check_params()


def test_a_model_predicts_a_row() -> None:
    module = make_module()
    trained = TorchModel(
        model=module, feature_columns=["x"], label_columns=["y"], input_shapes=[[-1, 4]]
    )
    row = {"x": [1.0, 2.0, 3.0, 4.0]}
    found = trained.get_prediction_fn()(module, row)
    wanted = module(torch.tensor([row["x"]], dtype=torch.float64))
    torch.testing.assert_close(found, wanted)


def test_an_old_lightning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning.pytorch as pl

    module = make_module()
    monkeypatch.setattr(pl, "__version__", "1.9.5", raising=False)
    with pytest.raises(RuntimeError, match=r"Lightning 1\.9\.5 is too old: 2\.0"):
        library_of(module)
