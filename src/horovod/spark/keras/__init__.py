"""Training Keras models on DataFrames of Spark."""

from horovod.spark.keras.estimator import KerasEstimator
from horovod.spark.keras.model import KerasModel

__all__ = ["KerasEstimator", "KerasModel"]
