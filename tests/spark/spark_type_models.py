"""Models with an input and an output for each type, which stay as they are in training.

An output gives what the table says for its type. A further one adds up all numbers of the features
of a row, and its label is that sum, so that the loss shows whether the ranks got the numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import torch
from tests.spark.spark_models import ESTIMATORS

if TYPE_CHECKING:
    from collections.abc import Sequence


def estimator_of(
    kind: str, inputs: Sequence[Any], outputs: Sequence[Any], dtypes: Sequence[str], **more: Any
) -> Any:
    """An estimator of such a model.

    Args:
        kind: of the estimator.
        inputs: the shape of a row of each feature.
        outputs: what the model gives for each label.
        dtypes: in which the ranks must get each label; the last is that of the sum.
        more: further Params.
    """
    options: dict[str, Any] = {"batch_size": 2, "epochs": 1, "verbose": 0, **more}
    options |= {"partitions_per_process": 1}
    if kind == "keras":
        options |= {
            "model": keras_model(inputs, outputs),
            "optimizer": keras.optimizers.SGD(0.0),
            "loss": ["mse"] * (len(outputs) + 1),
        }
    else:
        options |= {"input_shapes": [[-1, *shape] for shape in inputs]}
        options |= _of_torch(kind, outputs, dtypes, options["label_cols"])
    return ESTIMATORS[kind](**options)


def keras_model(inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    given = [keras.Input(shape) for shape in inputs]
    flat = keras.layers.Concatenate()([keras.layers.Reshape((-1,))(each) for each in given])
    total = keras.layers.Dense(1, kernel_initializer="ones", trainable=False, name="total")(flat)
    found = []
    for values in map(np.asarray, outputs):
        dense = keras.layers.Dense(values.size, kernel_initializer="zeros")
        found.append(keras.layers.Reshape(values.shape or (1,))(dense(total)))
        dense.bias.assign(values.ravel())
    return keras.Model(given, [*found, total])


def torch_model(outputs: Sequence[Any], base: Any = torch.nn.Module) -> Any:
    class Model(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.values = torch.nn.ParameterList(
                [torch.nn.Parameter(torch.tensor(each)) for each in outputs]
            )

        def forward(self, *given: Any) -> Any:
            assert all(each.dtype == torch.float32 for each in given)
            rows = len(given[0])
            total = torch.cat([each.reshape(rows, -1) for each in given], 1).sum(1, keepdim=True)
            found = [each.expand(rows, *each.shape) for each in self.values]
            return *found, total

    return Model


def losses_of(dtypes: Sequence[str]) -> list[Any]:
    """Losses that fail if a label has another type, and do not change the model."""

    def loss_of(dtype: str) -> Any:
        def loss(output: Any, label: Any) -> Any:
            assert label.dtype == getattr(torch, dtype), (label.dtype, dtype)
            return (output * 0).sum()

        return loss

    def last(output: Any, label: Any) -> Any:
        return ((output - label) ** 2).mean()

    return [*map(loss_of, dtypes[:-1]), last]


def _of_torch(
    kind: str, outputs: Sequence[Any], dtypes: Sequence[str], labels: Sequence[str]
) -> dict[str, Any]:
    losses = losses_of(dtypes)
    if kind == "torch":
        model = torch_model(outputs)()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        return {"model": model, "optimizer": optimizer, "loss": losses}
    import lightning.pytorch as pl

    class Module(torch_model(outputs, pl.LightningModule)):  # type: ignore[misc]
        def training_step(self, batch: Any, index: int) -> Any:
            given = [value for name, value in batch.items() if name.startswith("feature")]
            values = zip(losses, self(*given), [batch[name] for name in labels], strict=True)
            total = sum(loss(output, label.reshape(output.shape)) for loss, output, label in values)
            self.log("loss", total, on_epoch=True, on_step=False)
            return total

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return {"model": Module()}
