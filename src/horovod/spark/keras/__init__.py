"""Training Keras models on DataFrames of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._compat.on_demand import on_demand

if TYPE_CHECKING:
    from horovod.spark.keras.estimator import KerasEstimator as KerasEstimator
    from horovod.spark.keras.model import KerasModel as KerasModel

__all__ = ["KerasEstimator", "KerasModel"]

if not TYPE_CHECKING:  # which would take any name for one that exists
    __getattr__, __dir__ = on_demand(
        __name__, {"KerasEstimator": "estimator", "KerasModel": "model"}
    )
