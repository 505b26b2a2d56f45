"""Training Lightning modules on DataFrames of Spark."""

from horovod.spark.lightning.estimator import TorchEstimator
from horovod.spark.lightning.model import TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
