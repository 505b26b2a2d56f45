"""Callbacks of ``model.fit``."""

from __future__ import annotations

from horovod.keras import backend  # noqa: F401  # isort: skip  # which loads the Keras of callbacks
from horovod._keras import callbacks
from horovod._keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    LocalStepsCallback,
    MetricAverageCallback,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LocalStepsCallback",
    "MetricAverageCallback",
]


class BestModelCheckpoint(callbacks.BestModelCheckpoint):
    """Keeps the best model so far; its ``filepath`` is set by who runs the training.

    Args:
        monitor: which metric says how good a model is.
        verbose: 1 tells when a model is saved.
        mode: min, max, or auto: what is good.
        save_freq: after each "epoch", or after this many batches.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(monitor, verbose, False, mode, save_freq)
