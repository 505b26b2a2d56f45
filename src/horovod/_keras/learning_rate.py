"""Callbacks of ``model.fit`` that change the learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.callback import Logs, TrainingCallback
from horovod._keras.optimizers import follows_schedule, innermost
from horovod._rank import context
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


class LearningRateScheduleCallback(TrainingCallback):
    """Multiplies the learning rate during some epochs.

    Args:
        initial_lr: what is multiplied.
        multiplier: a function of the epoch, which has a fraction unless ``staircase``; or a number,
            which is raised to the power of the epochs since ``start_epoch``.
        start_epoch: the first epoch in which to act.
        end_epoch: the first in which to act no longer; None acts to the end.
        staircase: change the rate once per epoch, not with each batch.
        momentum_correction: when the rate changes, scale what momentum has gathered alike, as it
            was made with the old rate.
        steps_per_epoch: batches per epoch; None takes it from ``fit``. Beside
            ``hvd.elastic.Training``, which knows what part of an epoch is done, it is not used.

    Raises:
        UsageError: ``initial_lr`` is None.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise UsageError("initial_lr=None: give the learning rate that is to be multiplied")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._part_of_step = 0.0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Looks whether the learning rate can be set, and how many steps an epoch has.

        Raises:
            UsageError: it follows a schedule.
        """
        optimizer = self._optimizer()
        if follows_schedule(optimizer):
            raise UsageError(
                f"{type(self).__name__} cannot set the learning rate of "
                f"{type(optimizer).__name__}, which follows a schedule of its own; give the "
                "optimizer a number as learning_rate, or "
                "leave this callback out"
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._detect_steps()

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Notes the epoch."""
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Sets the rate of this batch.

        Raises:
            UsageError: how many steps an epoch has is unknown.
        """
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            before, after = self._parts_of_epoch(batch)
            self._part_of_step = after - before
            self._adjust(epoch + before)
        elif batch == 0:
            self._adjust(epoch)

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Adds the rate to the logs, as ``lr``."""
        if logs is not None:
            logs["lr"] = self._seam.number(self._optimizer().learning_rate)

    def _parts_of_epoch(self, batch: int) -> tuple[float, float]:
        """Return the parts of the epoch that are done before and after a batch."""
        training = self._seam.training_of(self.model)
        if training is not None:
            parts: tuple[float, float] = training.parts_of_epoch
            return parts
        if not self.steps_per_epoch:
            raise UsageError(
                f"{type(self).__name__} does not know how many batches an epoch has; give it "
                "steps_per_epoch"
            )
        return batch / self.steps_per_epoch, (batch + 1) / self.steps_per_epoch

    def _optimizer(self) -> Any:
        return innermost(self.model.optimizer)

    def _adjust(self, epoch: float) -> None:
        optimizer, seam = self._optimizer(), self._seam
        seam.fetch_state(self.model)
        old = seam.number(optimizer.learning_rate)
        optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)
        new = seam.number(optimizer.learning_rate)
        if self.momentum_correction and old > 0.0 and new != old:
            # The factor of momentum is a constant in the graph of the step; what it multiplies is
            # not.
            for gathered in seam.momentum_of(optimizer, self.model.trainable_variables):
                seam.multiply(gathered, new / old)

    def _detect_steps(self) -> int:
        """Return how many steps an epoch has; 0 if ``fit`` does not know."""
        steps = self.params.get("steps")
        if not steps and self.params.get("samples") and self.params.get("batch_size"):
            steps = self.params["samples"] // self.params["batch_size"]
        return int(steps or 0)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from that of one rank to that of all, batch by batch.

    Large batches need large rates, which are too large for weights that have just been made
    (Goyal et al., arXiv:1706.02677).

    Args:
        initial_lr: the rate at the end, already scaled by the number of ranks.
        warmup_epochs: over how many epochs to raise it; may have a fraction.
        momentum_correction: see :class:`LearningRateScheduleCallback`.
        steps_per_epoch: batches per epoch; None takes it from ``fit``.
        verbose: whether rank 0 says when it is over.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose
        super().__init__(
            initial_lr,
            self._share,
            end_epoch=warmup_epochs,  # type: ignore[arg-type]
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def _share(self, epoch: float) -> float:
        # The last batch of the warm-up already has the whole rate.
        epoch += self._part_of_step
        size = context.size()
        return (epoch * (size - 1) / self.warmup_epochs + 1.0) / size

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Adds the rate to the logs; says that it is reached."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == self.warmup_epochs - 1 and context.rank() == 0:
            rate = self._seam.number(self._optimizer().learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")
