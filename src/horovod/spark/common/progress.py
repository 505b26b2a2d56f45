"""How far a training is: what an elastic state keeps, and sends to ranks that come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COMMIT_EVERY = 100
"""After how many steps an elastic training commits within an epoch."""


@dataclass
class Progress:
    """Where a training is; the same on all ranks after each commit.

    Attributes:
        size: the number of ranks by which the learning rate is multiplied; 0 before the training
            has begun.
        history: what was measured in the epochs that have ended, as the framework has it.
        step: how many steps of the current epoch are done.
        steps: of how many.
        measured: what was measured in them; None if nothing was.
    """

    size: int
    history: Any
    step: int = 0
    steps: int = 0
    measured: Any = None

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return dict(vars(self))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to what :meth:`state_dict` returned."""
        vars(self).update(state_dict)

    def divide(self, steps: int, multiple: int = 1) -> None:
        """Goes on with the epoch in another number of steps: as much of it is done, but one step.

        Args:
            steps: of the epoch from now on.
            multiple: steps that belong together.
        """
        if self.steps:
            done = min(self.step * steps // self.steps, steps - 1)
            self.step = done - done % multiple
        self.steps = steps

    def end_epoch(self) -> None:
        """Nothing of the next epoch is done."""
        self.step, self.measured = 0, None
