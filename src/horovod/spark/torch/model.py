"""TorchModel: a trained model of PyTorch, as a stage of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import torch

from horovod.spark.common.estimator import HorovodModel
from horovod.spark.common.param_table import ParamRow, TableParams, with_params
from horovod.spark.common.serialization import Saved
from horovod.spark.torch.model_bytes import OptimizerRecord, model_bytes, model_of
from horovod.spark.torch.shaping import called, dtype_of, reshaped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.spark.common.prediction import Predict

__all__ = ["TorchModel"]


class TorchStage(Saved, TableParams):
    """The common part of TorchEstimator and TorchModel: saving, and their optimizer."""

    def getOptimizer(self) -> Any:
        """A new optimizer of the same class and state, over the parameters of the model."""
        optimizer, model = self.value("optimizer"), self.value("model")
        if optimizer is None or model is None:
            return optimizer
        return OptimizerRecord.of(optimizer, model).bound_to(model)

    def _encode(self, name: str, value: Any) -> bytes:
        if name == "model":
            return model_bytes(value)
        if name == "optimizer" and self.value("model") is not None:
            value = OptimizerRecord.of(value, self.value("model"))
        return bytes(cloudpickle.dumps(value))

    def _decode(self, name: str, data: bytes, others: Mapping[str, Any]) -> Any:
        if name == "model":
            return model_of(data)
        value = cloudpickle.loads(data)
        return value.bound_to(others["model"]) if isinstance(value, OptimizerRecord) else value


@with_params(
    ParamRow("optimizer", "the optimizer, with the learning rate for one rank"),
    ParamRow("input_shapes", "a shape for each feature, with -1 for the batch"),
    ParamRow("loss", "what the training used"),
    ParamRow("loss_constructors", "what the training used"),
)
class TorchModel(TorchStage, HorovodModel):
    """A trained model: ``transform`` predicts, ``getModel`` gives the model of PyTorch.

    It is on the CPU and in evaluation mode. ``getHistory()`` is a list with a dict for each epoch:
    ``epoch``, ``train`` and, with validation, ``validation``; these have ``loss`` and
    ``all_metrics``, a dict for each group of metrics.
    """

    def _predictor(self) -> TorchPredictor:
        return TorchPredictor(model_bytes(self.value("model")), self.value("input_shapes"))

    def _example(self) -> list[np.ndarray] | None:
        shapes = self.value("input_shapes")
        if shapes is None:
            return None
        return [np.zeros([1 if size == -1 else size for size in shape]) for shape in shapes]


class TorchPredictor:
    """Makes what predicts a batch in a task.

    Args:
        model: as :func:`model_bytes` gives it.
        input_shapes: of the features.
        names: of the features, if the model may take them as keyword arguments.
    """

    def __init__(
        self,
        model: bytes,
        input_shapes: Sequence[Sequence[int]] | None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._model = model
        self._input_shapes = input_shapes
        self._names = names

    def __call__(self) -> Predict:
        model = model_of(self._model).eval()

        @torch.inference_mode()
        def predict(features: list[np.ndarray]) -> list[np.ndarray]:
            outputs = outputs_of(model, features, self._input_shapes, self._names)
            return [output.numpy() for output in outputs]

        return predict


def outputs_of(
    model: torch.nn.Module,
    features: Sequence[np.ndarray],
    input_shapes: Sequence[Sequence[int]] | None,
    names: Sequence[str] | None,
) -> list[torch.Tensor]:
    """Return the outputs of a model for a batch.

    Args:
        model: to call.
        features, input_shapes: see :class:`TorchPredictor`.
        names: of the features; if they are those of the model's arguments, they say which is which.
    """
    dtype = dtype_of(model)
    tensors = [torch.from_numpy(np.array(feature)).to(dtype) for feature in features]
    inputs = reshaped(tensors, input_shapes)
    return called(model, inputs, names)
