"""An estimator goes on after the loss of an executor, in the process that is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.spark_models import KINDS, NUM_LINES, for_lines, keras_in_float64, with_features
from tests.spark.spark_training import note_rows, trained_rows
from tests.spark.spark_waits import is_running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EPOCHS = 3
# In the middle of the second epoch, which has four steps on two ranks.
LOST_BEFORE = 6


def noting(kind: str, folder: Path) -> dict[str, Any]:
    """Params with which all ranks note the rows of each step; one loses its executor."""
    note: Callable[[Any], None] = lambda labels: note_rows(folder, labels, LOST_BEFORE)  # noqa: E731
    if kind == "torch":
        import torch

        def loss_of_torch(output: Any, label: Any) -> Any:
            note(label.flatten().tolist())
            return torch.nn.functional.mse_loss(output, label)

        return {"loss": loss_of_torch}
    if kind == "keras":
        import keras
        import tensorflow as tf

        def loss_of_keras(label: Any, output: Any) -> Any:
            noted = tf.py_function(lambda y: note(y.numpy().flatten().tolist()), [label], [])
            with tf.control_dependencies([noted]):
                return keras.losses.mean_squared_error(label, output)

        return {"loss": loss_of_keras}
    import lightning.pytorch as pl

    class Notes(pl.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            note(batch["y"].flatten().tolist())

    return {"callbacks": [Notes()]}


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_trained_once_though_an_executor_is_lost(
    kind: str, line: Any, store: Any, tmp_path: Path
) -> None:
    if kind == "lightning":
        pytest.importorskip("lightning")
    with keras_in_float64():
        estimator = for_lines(
            kind,
            store,
            epochs=EPOCHS,
            min_num_proc=1,
            shuffle=True,
            random_seed=1,
            **noting(kind, tmp_path),
        )
        model = estimator.fit(with_features(line))
    assert not is_running(int((tmp_path / "lost").read_text()))
    processes = [line.split() for line in (tmp_path / "steps").read_text().splitlines()]
    assert len({pid for pid, rank in processes if rank == "0"}) == 1  # before and after
    rows = trained_rows(tmp_path)
    wanted = sorted(row.y for row in line.collect())
    assert len(rows) == EPOCHS * NUM_LINES
    for epoch in range(EPOCHS):
        assert sorted(rows[epoch * NUM_LINES : (epoch + 1) * NUM_LINES]) == wanted
    history = model.getHistory()
    if kind == "torch":
        assert [each["epoch"] for each in history] == list(range(EPOCHS))
    elif kind == "keras":
        assert [len(values) for values in history.values()] == [EPOCHS]
    else:
        assert set(history) == {"loss"}
