"""The progress of a training: the content of an elastic state, sent to ranks that come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """The progress of a training, the same on all ranks after each commit.

    Attributes:
        size: the number of ranks by which the learning rate is multiplied; 0 before the training
            has begun.
        epoch: the first that has not ended.
        history: what was measured in the epochs that have ended, as the framework has it.
        stretches: which rows of the current epoch are done, see :mod:`horovod.spark.data.division`.
        measured: what was measured in them; None if nothing was.
        samples_done: by all ranks, in all epochs.
        checkpoint: what was written last, or from which the run goes on, if its framework needs it.
        best: how good the best checkpoint was, as the callback of the framework has it.
    """

    size: int = 0
    epoch: int = 0
    history: Any = None
    stretches: list[tuple[int, int]] = field(default_factory=list)
    measured: Any = None
    samples_done: int = 0
    checkpoint: bytes | None = None
    best: Any = None

    @property
    def steps_done(self) -> int:
        """Return how many steps of the current epoch are done."""
        return sum(steps for _, steps in self.stretches)

    def state_dict(self) -> dict[str, Any]:
        """Return all of it."""
        return dict(vars(self))

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Go to what :meth:`state_dict` returned."""
        vars(self).update(state_dict)

    def end_epoch(self) -> None:
        """Count an epoch; nothing of the next one is done."""
        self.epoch += 1
        self.stretches, self.measured = [], None
