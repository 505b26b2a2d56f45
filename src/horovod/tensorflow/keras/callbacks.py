"""Callbacks of ``model.fit``."""

from horovod._keras.callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
)
from horovod._keras.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
