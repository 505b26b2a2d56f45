"""The position of a program of epochs and loops, so that a rank can be sent to that of another."""

from __future__ import annotations

import copy
from typing import Any


class Position:
    """The progress of the training.

    Programs of all ranks go through the same points: an epoch begins, a loop begins, a step ends, a
    loop ends. The position counts them, so that of two ranks the one with more is ahead.

    Attributes:
        progress: points passed.
        epoch: from 0.
        samples_done: by all ranks, in all loops and epochs.
        ranks: how many the job had when samples were last divided; 0 before that.
    """

    def __init__(self) -> None:
        self.progress = 0
        self.epoch = 0
        self.samples_done = 0
        self.ranks = 0
        # By name, of the loops of this epoch that have begun.
        self._consumed: dict[str, int] = {}
        self._over: set[str] = set()
        self._digests: dict[str, int] = {}

    def has_begun(self, loop: str) -> bool:
        """Whether the loop of this epoch has begun."""
        return loop in self._consumed

    def is_over(self, loop: str) -> bool:
        """Whether it has ended."""
        return loop in self._over

    @property
    def in_loop(self) -> bool:
        """Whether a loop of this epoch has begun and not ended."""
        return len(self._over) < len(self._consumed)

    def consumed(self, loop: str) -> int:
        """Return how many samples of a loop are done."""
        return self._consumed.get(loop, 0)

    def digest(self, loop: str) -> int | None:
        """The checksum of the order of its samples; None if it is unknown."""
        return self._digests.get(loop)

    def begin(self, loop: str, digest: int | None = None) -> None:
        """A loop of this epoch begins; the program has left all others."""
        self._over.update(self._consumed)
        self._consumed[loop] = 0
        if digest is not None:
            self._digests[loop] = digest
        self.progress += 1

    def advance(self, loop: str, consumed: int) -> None:
        """A step has ended."""
        self.samples_done += consumed - self.consumed(loop)
        self._consumed[loop] = consumed
        self.progress += 1

    def end(self, loop: str) -> None:
        """A loop has ended."""
        self._over.add(loop)
        self.progress += 1

    def next_epoch(self) -> None:
        """An epoch has ended."""
        self.epoch += 1
        self._consumed, self._over, self._digests = {}, set(), {}
        self.progress += 1

    def state_dict(self) -> dict[str, Any]:
        """All of it, small."""
        return copy.deepcopy(vars(self))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to what :meth:`state_dict` returned."""
        vars(self).update(copy.deepcopy(state_dict))


class Values:
    """Values of the program that go back when the training does; its attributes."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"training.track({name}=...) first: there is no such value")

    def state_dict(self) -> dict[str, Any]:
        """All of them."""
        return copy.deepcopy(vars(self))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to what :meth:`state_dict` returned."""
        vars(self).clear()
        vars(self).update(copy.deepcopy(state_dict))
