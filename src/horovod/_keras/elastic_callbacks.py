"""Callbacks of ``model.fit`` that keep the state of an elastic training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.callback import Logs, TrainingCallback
from horovod._keras.epoch_end import ShortEpoch, stops_training
from horovod.errors import HostsUpdatedInterrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]


class _StateCallback(TrainingCallback):
    """A callback that notes in the state how far the training is.

    Whoever commits asks all of them first, so that their order in the list does not matter.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_begin(self, logs: Any = None) -> None:
        """Takes part in the commits of this training."""
        # In the state, where whoever commits finds it; those of an earlier fit have other params.
        known = vars(self.state).setdefault("_noting_callbacks", [])
        known[:] = [each for each in _noting(self.state, self.params) if each is not self]
        known.append(self)

    def note_batch(self, batch: int) -> None:
        """A batch of this epoch has ended; may be told twice.

        Args:
            batch: the last one that has ended, from 0.
        """

    def note_epoch(self, epoch: int) -> None:
        """An epoch has ended; may be told twice.

        Args:
            epoch: as Keras counts.
        """


class CommitStateCallback(TrainingCallback):
    """Commits the state every few batches, and at the end of each epoch.

    It may stand before or after the callbacks that update the state: what they note is always in
    the commit. If the job changes at the last batch of an epoch, that epoch ends first; at the end
    of the last epoch, the training just ends.

    Args:
        state: to commit.
        batches_per_commit: how many batches may be lost when a rank is.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit
        self._put_off: HostsUpdatedInterrupt | None = None

    def commit(self) -> None:
        """Commits the state; for subclasses that do more.

        Raises:
            HostsUpdatedInterrupt: the job changes.
            HorovodInternalError: a rank was lost.
        """
        self.state.commit()

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Begins to count."""
        self.batches_remaining = self.batches_per_commit
        self._put_off = None

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Commits after every few batches."""
        self.batches_remaining -= 1
        if self.batches_remaining > 0:
            return
        self.batches_remaining = self.batches_per_commit
        for each in _noting(self.state, self.params):
            each.note_batch(batch)
        try:
            self.commit()
        except HostsUpdatedInterrupt as interrupt:
            if batch + 1 != (self.params or {}).get("steps"):
                raise
            self._put_off = interrupt

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Commits, so that training goes on with the next epoch."""
        for each in _noting(self.state, self.params):
            each.note_epoch(epoch)
        interrupt, self._put_off = self._put_off, None
        try:
            self.commit()
        except HostsUpdatedInterrupt as newer:
            interrupt = newer
        is_last = epoch + 1 == (self.params or {}).get("epochs") or stops_training(self.model)
        if interrupt is not None and not is_last:  # to begin again would train nothing, or too much
            raise interrupt


class UpdateBatchStateCallback(_StateCallback):
    """Keeps in ``state.batch`` how many batches of the epoch have ended.

    After a change of the job, an epoch that was interrupted consists of its remaining batches only,
    at least of one. That needs a known number of batches, as of arrays and of ``steps_per_epoch``.

    Args:
        state: has an attribute ``batch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self._done_before = 0
        self._short: ShortEpoch | None = None

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Shortens an epoch of which some batches have ended before."""
        self._done_before = self.state.batch
        steps = (self.params or {}).get("steps")
        if steps and self._done_before:
            self._short = ShortEpoch(self.model, self.params, self._done_before)

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Counts, and ends a short epoch."""
        self.note_batch(batch)
        if self._short is not None:
            self._short.batch_ended(batch)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """The next epoch begins with its first batch."""
        self.note_epoch(epoch)
        if self._short is not None:
            self._short.epoch_ended()
            self._short = None

    def note_batch(self, batch: int) -> None:
        self.state.batch = self._done_before + batch + 1

    def note_epoch(self, epoch: int) -> None:
        self._done_before = self.state.batch = 0


class UpdateEpochStateCallback(_StateCallback):
    """Keeps in ``state.epoch`` how many epochs have ended, also those before the last change.

    Args:
        state: has an attribute ``epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.initial_epoch = self.state.epoch
        self._first: int | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Goes on from the epochs that have ended before."""
        super().on_train_begin(logs)
        self.initial_epoch = self.state.epoch
        self._first = None

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Notes where Keras begins to count, which ``initial_epoch`` of ``fit`` says."""
        if self._first is None:
            self._first = epoch

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Counts."""
        self.note_epoch(epoch)

    def note_epoch(self, epoch: int) -> None:
        self.state.epoch = self.initial_epoch + epoch - (self._first or 0) + 1


def _noting(state: Any, params: Any) -> Iterator[_StateCallback]:
    """The callbacks of one training that note something in a state."""
    known: list[_StateCallback] = getattr(state, "_noting_callbacks", [])
    return (each for each in known if each.params is params)
