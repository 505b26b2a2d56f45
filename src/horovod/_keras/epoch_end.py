"""An epoch of ``model.fit`` that ends early, after which the training goes on."""

from __future__ import annotations

import sys
from typing import Any


class _EpochHasEnded:
    """A short epoch's value of ``model.stop_training``, different from the True of others."""

    def __bool__(self) -> bool:
        return True


def stops_training(model: Any) -> bool:
    """Whether the training ends after this epoch, and not only the epoch."""
    stop = getattr(model, "stop_training", False)
    return bool(stop) and not isinstance(stop, _EpochHasEnded)


class EpochEnd:
    """Ends epochs of endless data; the training goes on.

    Args:
        model: that is trained.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    def end_epoch(self) -> None:
        """Ends the epoch after this batch."""
        if not self._model.stop_training:
            self._model.stop_training = _EpochHasEnded()

    def epoch_ended(self) -> None:
        """Lets the next epoch follow, unless somebody has stopped the training."""
        if isinstance(self._model.stop_training, _EpochHasEnded):
            self._model.stop_training = False


class ShortEpoch:
    """An epoch some batches of which have ended before, in an earlier call of ``fit``.

    Args:
        model: that is trained.
        params: of its callbacks; its number of steps is that of this epoch until it ends.
        num_before: batches that have ended before.
    """

    def __init__(self, model: Any, params: dict[str, Any], num_before: int) -> None:
        self._model = model
        self._params = params
        self._full = params["steps"]
        self._remaining = max(1, self._full - num_before)
        params["steps"] = self._remaining

    def batch_ended(self, batch: int) -> None:
        """Ends the epoch after its last batch.

        Args:
            batch: that has ended, from 0.
        """
        # Both generations leave their loop over the batches, and look again after the epoch.
        if batch + 1 >= self._remaining and not self._model.stop_training:
            self._model.stop_training = _EpochHasEnded()

    def epoch_ended(self) -> None:
        """Lets the next epoch follow, as long as it is."""
        self._params["steps"] = self._full
        if isinstance(self._model.stop_training, _EpochHasEnded):
            self._model.stop_training = False
            _rewind(self._model)


def _rewind(model: Any) -> None:
    """Lets Keras 3 begin the next epoch at the beginning of its data.

    Its iterator is made to be left in the middle only when training ends: it would go on there, or
    refuse to. Keras 2 begins anew by itself.
    """
    frame = sys._getframe(1)
    while frame is not None:
        iterator = frame.f_locals.get("epoch_iterator")
        if iterator is not None and frame.f_locals.get("self") is model:
            break
        frame = frame.f_back  # type: ignore[assignment]
    else:
        return
    if getattr(iterator, "num_batches", None) and getattr(iterator, "_num_batches", None):
        iterator.reset()
    else:  # endless data just go on
        iterator.data_adapter.on_epoch_end()
