"""The callback of ``model.fit`` by which a training follows its loop, and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from horovod.spark.common.epoch_loop import EpochLoop
    from horovod.spark.common.progress import Progress


class FollowLoop(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts steps and epochs, and commits them; must be the last callback.

    Args:
        loop: whose epochs are trained.
        progress: of the training.
        weigh_step: called before each step.
        end_epoch: called with the number of the epoch, what was measured, and whether there is a
            new checkpoint.
        path: of the file in which a callback before this one saves checkpoints.
    """

    def __init__(
        self,
        loop: EpochLoop,
        progress: Progress,
        weigh_step: Callable[[EpochLoop], None],
        end_epoch: Callable[[int, Mapping[str, object], bool], None],
        path: Path,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._progress = progress
        self._weigh_step = weigh_step
        self._end_epoch = end_epoch
        self._path = path
        self._seen = self._version()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, object] | None = None) -> None:
        """Go on with what was measured if ranks came or went in the middle of the epoch."""
        measured = self._progress.measured or []
        # A rank that is new here has only the metric of the loss before its first batch.
        for variable, value in zip(self.model.metrics_variables, measured, strict=False):
            variable.assign(value)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, object] | None = None) -> None:
        """Weigh the step."""
        self._weigh_step(self._loop)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, object] | None = None) -> None:
        """Count the step; commit with what the metrics have measured so far."""
        self._loop.count_step()
        if self._loop.commit_is_due():
            variables = self.model.metrics_variables
            self._progress.measured = [variable.numpy() for variable in variables]
            self._loop.commit()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, object] | None = None) -> None:
        """End the epoch; see whether there is a new file."""
        now = self._version()
        self._end_epoch(epoch, logs or {}, now is not None and now != self._seen)
        self._seen = self._version()
        self._loop.end_epoch(stops=bool(self.model.stop_training))

    def _version(self) -> tuple[int, int] | None:
        if not self._path.exists():
            return None
        stat = self._path.stat()
        return stat.st_ino, stat.st_mtime_ns
