"""The three kinds of estimators of the tests, and what one process trains instead of them."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import torch
from pyspark.ml.feature import MaxAbsScaler, VectorAssembler

from horovod.spark import lightning as of_lightning
from horovod.spark.data.reader import ParquetReader
from horovod.spark.keras import KerasEstimator, KerasModel
from horovod.spark.keras.model_bytes import state_in
from horovod.spark.torch import TorchEstimator, TorchModel
from horovod.spark.torch.plain import loaded
from horovod.spark.torch.training import _step, checkpoint_of

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("torch", "keras", "lightning")
ESTIMATORS = {
    "torch": TorchEstimator,
    "keras": KerasEstimator,
    "lightning": of_lightning.TorchEstimator,
}
MODELS = {"torch": TorchModel, "keras": KerasModel, "lightning": of_lightning.TorchModel}
LEAST_ACCURACY = 0.97
BROKEN_OFF = "broken off in the second epoch"

DIGITS_EPOCHS = 20
DIGITS_RATE = 0.004
NUM_LINES = 64
BATCH = 8
STEPS = NUM_LINES // BATCH // 2
RATE = 0.05


def for_digits(kind: str, store: Any, **more: Any) -> Any:
    """An estimator that learns which digit an image shows."""
    options: dict[str, Any] = {
        "num_proc": 2,
        "store": store,
        "feature_cols": ["pixels"],
        "label_cols": ["digit"],
        "epochs": DIGITS_EPOCHS,
        "random_seed": 1,
        "partitions_per_process": 2,
        "verbose": 0,
    }
    if kind == "keras":
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Dense(256, "relu"), keras.layers.Dense(10, "softmax")]
        options |= {
            "model": keras.Sequential([keras.Input((64,)), *layers]),
            "optimizer": keras.optimizers.Adam(DIGITS_RATE),
            "loss": "sparse_categorical_crossentropy",
        }
    else:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
        model = torch.nn.Sequential(*layers)
        loss = torch.nn.functional.cross_entropy
        options |= _of_torch(kind, model, torch.optim.Adam, {"lr": DIGITS_RATE}, loss)
        options["input_shapes"] = [[-1, 64]]
    return ESTIMATORS[kind](**options | more)


def for_lines(kind: str, store: Any, **more: Any) -> Any:
    """An estimator that computes in float64 and reads its rows in the order of the files."""
    options: dict[str, Any] = {
        "num_proc": 2,
        "store": store,
        "feature_cols": ["features"],
        "label_cols": ["y"],
        "batch_size": BATCH,
        "epochs": 2,
        "shuffle": False,
        "partitions_per_process": 2,
        "verbose": 0,
    }
    if kind == "keras":
        optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
        options |= {"model": _keras_line(), "optimizer": optimizer, "loss": "mse"}
    else:
        loss, rates = torch.nn.functional.mse_loss, {"lr": RATE, "momentum": 0.9}
        options |= _of_torch(kind, _torch_line(), torch.optim.SGD, rates, loss)
        options |= {"input_shapes": [[-1, 2]], "label_shapes": [[-1, 1]]}
    return ESTIMATORS[kind](**options | more)


def with_pixels(frame: Any) -> Any:
    """Adds what :func:`for_digits` wants: images between 0 and 1."""
    return MaxAbsScaler(inputCol="image", outputCol="pixels").fit(frame).transform(frame)


def with_features(frame: Any) -> Any:
    """Adds what :func:`for_lines` wants."""
    return VectorAssembler(inputCols=["a", "b"], outputCol="features").transform(frame)


def accuracy(predictions: Any) -> float:
    """The share of digits that were found."""
    rows = predictions.select("digit", "digit__output").collect()
    return float(np.mean([row.digit == row.digit__output.toArray().argmax() for row in rows]))


def _torch_line() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 1)).double()


def _keras_line() -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def _of_torch(kind: str, model: Any, optimizer: Any, rates: dict[str, Any], loss: Any) -> Any:
    if kind == "torch":
        return {"model": model, "optimizer": optimizer(model.parameters(), **rates), "loss": loss}
    import lightning.pytorch as pl

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, rows: Any) -> Any:
            return self.layers(rows)

        def training_step(self, batch: Any, index: int) -> Any:
            rows, labels = batch.values()
            value = loss(self(rows), labels)
            self.log("loss", value, on_epoch=True, on_step=False)
            return value

        def configure_optimizers(self) -> Any:
            return optimizer(self.parameters(), **rates)

    return {"model": Module()}


class Breaking:
    """Ends a training on lines by an exception in its second epoch, while there is a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._calls = 0

    def step(self, *args: Any) -> Any:
        """In place of a step of PyTorch."""
        self._calls += 1
        if self._calls > STEPS:
            self.begin_epoch(1)
        return _step(*args)

    def begin_epoch(self, epoch: int) -> None:
        if epoch == 1 and Path(self.path).exists():
            raise RuntimeError(BROKEN_OFF)


def breaking(kind: str, path: Path) -> dict[str, Any]:
    """Params with which a training on lines breaks off, while there is a file."""
    breaks = Breaking(path)
    if kind == "torch":
        return {"train_minibatch_fn": breaks.step}
    if kind == "keras":

        class OfKeras(keras.callbacks.Callback):  # type: ignore[misc]
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                breaks.begin_epoch(epoch)

        return {"callbacks": [OfKeras()]}
    import lightning.pytorch as pl

    class OfLightning(pl.Callback):  # type: ignore[misc]
        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            breaks.begin_epoch(trainer.current_epoch)

    return {"callbacks": [OfLightning()]}


def last_epoch(kind: str, checkpoint: bytes) -> int:
    """The epoch after which a checkpoint was written."""
    if kind == "keras":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.keras"
            path.write_bytes(checkpoint)
            return int(state_in(path)["epoch"])
    if kind == "torch":
        return int(checkpoint_of(checkpoint)["history"][-1]["epoch"])
    return int(loaded(checkpoint, kind)["epoch"])


def predictions_of_one_process(kind: str, path: str, epochs: int, rows: np.ndarray) -> np.ndarray:
    """What one process predicts that has trained on lines: its batches are those of both ranks."""
    if kind == "keras":
        model = _keras_line()
        model.compile(keras.optimizers.SGD(2 * RATE, momentum=0.9), "mse")
        for batch in _steps(path, epochs, drop_last=False):
            model.train_on_batch(batch["features"], batch["y"].reshape(-1, 1))
        return np.asarray(model(rows)).ravel()
    line = _torch_line()
    optimizer = torch.optim.SGD(line.parameters(), lr=2 * RATE, momentum=0.9)
    for batch in _steps(path, epochs, drop_last=True):
        optimizer.zero_grad()
        labels = torch.from_numpy(batch["y"]).reshape(-1, 1)
        torch.nn.functional.mse_loss(line(torch.from_numpy(batch["features"])), labels).backward()
        optimizer.step()
    return np.asarray(line(torch.from_numpy(rows)).detach()).ravel()


def _steps(path: str, epochs: int, drop_last: bool) -> Iterator[dict[str, np.ndarray]]:
    with ExitStack() as opened:
        readers = [
            opened.enter_context(
                ParquetReader(
                    path,
                    columns=["features", "y"],
                    batch_size=BATCH,
                    rank=rank,
                    size=2,
                    shuffle=False,
                    drop_last=drop_last,
                )
            )
            for rank in range(2)
        ]
        for epoch in range(epochs):
            shares = [reader.batches(epoch, STEPS) for reader in readers]
            for parts in zip(*shares, strict=True):
                yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@contextmanager
def keras_in_float64() -> Iterator[None]:
    """New layers compute in float64."""
    policy = keras.config.dtype_policy()  # which follows floatx only until it is asked for
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        yield
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy(policy)
