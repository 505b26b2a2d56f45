"""Training PyTorch models on DataFrames of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._compat.on_demand import on_demand

if TYPE_CHECKING:
    from horovod.spark.torch.estimator import TorchEstimator as TorchEstimator
    from horovod.spark.torch.model import TorchModel as TorchModel

__all__ = ["TorchEstimator", "TorchModel"]

if not TYPE_CHECKING:  # which would take any name for one that exists
    __getattr__, __dir__ = on_demand(
        __name__, {"TorchEstimator": "estimator", "TorchModel": "model"}
    )
