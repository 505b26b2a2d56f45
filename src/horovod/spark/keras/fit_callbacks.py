"""Callbacks of ``model.fit`` by which a training follows its epochs, and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from horovod.tensorflow.keras.elastic import CommitStateCallback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from horovod.spark.common.progress import Progress


class EpochEnd(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells the training of each epoch, and whether there is a new checkpoint.

    Args:
        tell: is given the number of the epoch, what was measured, and whether it is so.
        path: of the file in which a callback before this one saves checkpoints.
    """

    def __init__(self, tell: Callable[[int, Mapping[str, Any], bool], None], path: Path) -> None:
        super().__init__()
        self._tell = tell
        self._path = path
        self._seen = self._version()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Looks whether there is a new file."""
        now = self._version()
        self._tell(epoch, logs or {}, now is not None and now != self._seen)
        self._seen = self._version()

    def _version(self) -> tuple[int, int] | None:
        if not self._path.exists():
            return None
        stat = self._path.stat()
        return stat.st_ino, stat.st_mtime_ns


class Commits(CommitStateCallback):
    """Commits with what the metrics have measured so far, and lets an epoch go on with that.

    Args:
        state: to commit; has an attribute ``batch``.
        progress: of the training, a part of the state.
        batches_per_commit: how many batches may be lost when a rank is.
    """

    def __init__(self, state: Any, progress: Progress, batches_per_commit: int) -> None:
        super().__init__(state, batches_per_commit)
        self._progress = progress

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Goes on in the middle of an epoch if ranks came or went there."""
        measured = self._progress.measured or []
        # A rank that is new here has only the metric of the loss before its first batch.
        for variable, value in zip(self.model.metrics_variables, measured, strict=False):
            variable.assign(value)

    def commit(self) -> None:
        if self.state.batch:
            variables = self.model.metrics_variables
            self._progress.measured = [variable.numpy() for variable in variables]
        super().commit()
