"""KerasModel: a trained model of Keras, as a stage of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cloudpickle
import keras
import numpy as np

from horovod.spark.common.estimator import HorovodModel
from horovod.spark.common.param_table import ParamRow, TableParams, with_params
from horovod.spark.common.serialization import Saved
from horovod.spark.keras.model_bytes import OptimizerRecord, model_bytes, model_of
from horovod.spark.keras.shaping import as_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod.spark.common.prediction import Predict

__all__ = ["KerasModel"]

CUSTOM_OBJECTS = ParamRow("custom_objects", "classes and functions that Keras does not know", {})


class KerasStage(Saved, TableParams):
    """The way in which KerasEstimator and KerasModel are saved."""

    def _encode(self, name: str, value: Any) -> bytes:
        if name == "model":
            return model_bytes(value)
        if name == "optimizer":
            value = OptimizerRecord.of(value)
        return bytes(cloudpickle.dumps(value))

    def _decode(self, name: str, data: bytes, others: Mapping[str, Any]) -> Any:
        if name == "model":
            return model_of(data, others.get("custom_objects"), compiled=True)
        value = cloudpickle.loads(data)
        if not isinstance(value, OptimizerRecord):
            return value
        optimizer = value.made(others.get("custom_objects"))
        if value.values:
            value.restore(optimizer, others["model"].trainable_variables)
        return optimizer


@with_params(CUSTOM_OBJECTS, ParamRow("_floatx", "the floating-point type of Keras"))
class KerasModel(KerasStage, HorovodModel):
    """A trained model: ``transform`` predicts, ``getModel`` gives the model of Keras, compiled.

    ``getHistory()`` is a dict: the name of a metric, and a list with its value for each epoch, an
    average over the ranks.
    """

    def _predictor(self) -> _KerasPredictor:
        return _KerasPredictor(
            model_bytes(self.value("model")), self.value("custom_objects"), self.value("_floatx")
        )

    def _example(self) -> list[np.ndarray] | None:
        inputs = getattr(self.value("model"), "inputs", None)
        if inputs is None:
            return None
        return [np.zeros([size or 1 for size in each.shape]) for each in inputs]


class _KerasPredictor:
    """Makes what predicts a batch in a task."""

    def __init__(self, model: bytes, custom_objects: Any, floatx: str | None) -> None:
        self._model = model
        self._custom_objects = custom_objects
        self._floatx = floatx

    def __call__(self) -> Predict:
        if self._floatx is not None:
            keras.config.set_floatx(self._floatx)
        with keras.device("cpu"):
            model = model_of(self._model, self._custom_objects, compiled=False)
        inputs = getattr(model, "inputs", None)

        def predict(features: list[np.ndarray]) -> list[np.ndarray]:
            arrays = as_inputs(features, inputs)
            with keras.device("cpu"):
                outputs = model(arrays[0] if len(arrays) == 1 else arrays, training=False)
            listed = outputs if isinstance(outputs, tuple | list) else [outputs]
            return [keras.ops.convert_to_numpy(output) for output in listed]

        return predict
