"""The learning rate for several ranks, and a schedule of it."""

from __future__ import annotations

from typing import Any

import keras


@keras.saving.register_keras_serializable(package="horovod")
class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Another schedule times a number.

    Args:
        schedule: gives the rate of each step for one rank.
        factor: the number of ranks.
    """

    def __init__(self, schedule: Any, factor: float) -> None:
        super().__init__()
        self.schedule = schedule
        self.factor = factor

    def __call__(self, step: Any) -> Any:
        return self.schedule(step) * self.factor

    def get_config(self) -> dict[str, Any]:
        """Return the configuration to save."""
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "factor": self.factor}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ScaledSchedule:
        """From what ``get_config`` gives."""
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["factor"])


class Rate:
    """The learning rate for one rank and that for all, which is so many times as large.

    Args:
        optimizer: not built yet; one with a schedule gets one that can be scaled.

    Attributes:
        scaled: the rate for all ranks; None before :meth:`scale`, or if it follows a schedule.
    """

    def __init__(self, optimizer: Any) -> None:
        self._base: float | None = None
        self.scaled: float | None = None
        schedule = getattr(optimizer, "_learning_rate", None)
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            optimizer.learning_rate = ScaledSchedule(schedule, 1)
        else:
            self._base = float(optimizer.learning_rate)

    def scale(self, optimizer: keras.optimizers.Optimizer, size: int) -> None:
        """Says how many ranks there are.

        Args:
            optimizer: made of that of the constructor; a schedule of it is scaled at once.
            size: number of ranks.
        """
        if self._base is None:
            optimizer._learning_rate.factor = size
        else:
            self.scaled = self._base * size

    def begin(self, optimizer: keras.optimizers.Optimizer, factor: float) -> None:
        """Sets the rate for all ranks, times a factor by which it has changed in the training."""
        if self.scaled is not None:
            optimizer.learning_rate = self.scaled * factor

    def resume(self, optimizer: keras.optimizers.Optimizer, saved: float | None) -> None:
        """Goes on with a rate for one rank that was saved."""
        if self._base and saved is not None:
            self.begin(optimizer, saved / self._base)

    def for_one_rank(self, optimizer: keras.optimizers.Optimizer) -> float | None:
        """Return the current rate for one rank; None if it follows a schedule."""
        if self._base is None or not self.scaled:
            return self._base
        # Exactly what it was, if nothing has changed it.
        now = float(optimizer.learning_rate)
        is_same = abs(now - self.scaled) <= 1e-6 * abs(self.scaled)
        return self._base if is_same else self._base * (now / self.scaled)
