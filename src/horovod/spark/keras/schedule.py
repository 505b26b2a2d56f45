"""A schedule of the learning rate for several ranks."""

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
        """What can be saved."""
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "factor": self.factor}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ScaledSchedule:
        """From what ``get_config`` gives."""
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(schedule, config["factor"])
