"""TorchModel of Lightning: a trained module, as a stage of Spark."""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.spark.torch import model as of_torch
from horovod.spark.torch.model_bytes import model_bytes

__all__ = ["TorchModel"]


class TorchModel(of_torch.TorchModel):
    """A trained model: ``transform`` predicts, ``getModel`` gives the model.

    ``getHistory()`` is a dict of what was logged last: the name of a metric and its value, an
    average over the ranks.
    """

    def _predictor(self) -> of_torch.TorchPredictor:
        model = model_bytes(self.value("model"))
        return of_torch.TorchPredictor(
            model, self.value("input_shapes"), self.value("feature_columns")
        )

    def get_prediction_fn(self) -> Any:
        """A function of the model and a row that predicts.

        Returns:
            ``function(model, row)``: ``row`` has the features by name; gives what the model gives
            for a batch of that row.
        """
        names, shapes = self.value("feature_columns"), self.value("input_shapes")

        def predict(model: Any, row: Any) -> Any:
            features = [row[name] for name in names]
            arrays = [
                np.asarray([value.toArray() if hasattr(value, "toArray") else value])
                for value in features
            ]
            outputs = of_torch.outputs_of(model, arrays, shapes, names)
            return outputs[0] if len(outputs) == 1 else outputs

        return predict
