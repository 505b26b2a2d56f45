"""Estimators for tests, and what there is to ask of their predictions."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch
from pyspark.ml.feature import VectorAssembler

from horovod.spark.keras import KerasEstimator
from horovod.spark.torch import TorchEstimator

LEAST_ACCURACY = 0.97


def torch_for_digits(store: Any, **more: Any) -> TorchEstimator:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    options: dict[str, Any] = {
        "num_proc": 2,
        "store": store,
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.002),
        "loss": torch.nn.functional.cross_entropy,
        "input_shapes": [[-1, 64]],
        "feature_cols": ["pixels"],
        "label_cols": ["digit"],
        "epochs": 25,
        "random_seed": 1,
        "partitions_per_process": 2,
        "verbose": 0,
    }
    return TorchEstimator(**options | more)


def keras_for_digits(store: Any, **more: Any) -> KerasEstimator:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, "relu"),
            keras.layers.Dense(10, "softmax"),
        ]
    )
    options: dict[str, Any] = {
        "num_proc": 2,
        "store": store,
        "model": model,
        "optimizer": keras.optimizers.Adam(0.002),
        "loss": "sparse_categorical_crossentropy",
        "feature_cols": ["pixels"],
        "label_cols": ["digit"],
        "epochs": 25,
        "random_seed": 1,
        "partitions_per_process": 2,
        "verbose": 0,
    }
    return KerasEstimator(**options | more)


def torch_for_lines(store: Any, **more: Any) -> TorchEstimator:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1))
    options: dict[str, Any] = {
        "num_proc": 2,
        "store": store,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
        "loss": torch.nn.functional.mse_loss,
        "input_shapes": [[-1, 2]],
        "feature_cols": ["features"],
        "label_cols": ["y"],
        "batch_size": 8,
        "epochs": 3,
        "partitions_per_process": 2,
        "verbose": 0,
    }
    return TorchEstimator(**options | more)


def accuracy(predictions: Any) -> float:
    rows = predictions.select("digit", "digit__output").collect()
    return float(np.mean([row.digit == row.digit__output.toArray().argmax() for row in rows]))


def with_features(frame: Any) -> Any:
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    return assembler.transform(frame)
