"""Combine gradients of several weighted backward passes into one gradient of a step."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from horovod._train.gradients import BackwardPasses
from horovod._train.weights import GradientWeight, shares

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._train.weights import WeightSource

P = TypeVar("P", bound=Hashable)


@dataclass(frozen=True)
class Shares:
    """The factors with which a new gradient is added to the existing one.

    Attributes:
        kept: multiplies what earlier passes of this step have left.
        taken: multiplies the new gradient; one of 0 is left out, as it may be infinite.
        is_first: whether what there is comes from before this step.
    """

    kept: float
    taken: float
    is_first: bool


class WeightedPasses(Generic[P]):
    """Weighs the backward passes of a step. Safe to use from several threads.

    Args:
        source: the weight of each pass.

    Raises:
        UsageError: it is no finite number of at least 0.
    """

    def __init__(self, source: WeightSource) -> None:
        self._lock = threading.Lock()
        self._weight = GradientWeight(source)
        self._passes: BackwardPasses[P] = BackwardPasses()
        self._of_pass = 0.0
        self._contained: dict[P, float] = {}

    @property
    def exists(self) -> bool:
        """Whether gradients have a weight now."""
        return self._weight.exists

    def begin_step(self) -> None:
        """Forgets the passes of the step that ended."""
        self._weight.begin_step()
        self._passes.expect()
        self._contained.clear()

    def change(self, source: WeightSource) -> None:
        """Sets the weight from the next pass on; raises as :meth:`GradientWeight.change`."""
        self._weight.change(source)
        self._passes.expect()

    def of_step(self) -> float | None:
        """The weight of this step's gradients; see :meth:`GradientWeight.of_step`."""
        return self._weight.of_step()

    def arrive_without_weight(self) -> None:
        """Notes that a pass of this step has no weight, and so may have none of the others."""
        self._weight.begin_pass()

    def arrive(self, param: P, num_passes: int, run: int, is_nested: Callable[[], bool]) -> Shares:
        """Weighs a new gradient of a parameter.

        Args:
            param: the parameter.
            num_passes: how many passes a step has.
            run, is_nested: of the backward function; see :meth:`BackwardPasses.begins`.

        Raises:
            UsageError: the source returned no finite number of at least 0.
        """
        with self._lock:
            if self._passes.begins(param, run, is_nested):
                self._of_pass = self._weight.begin_pass() or 0.0
            is_first = param not in self._contained
            before, now = self._contained.get(param, 0.0), self._weight.of_passes
            self._contained[param] = now
        return Shares(*shares(before, now, self._of_pass, num_passes), is_first)

    def complete(self, param: P) -> float | None:
        """Return the factor for the gradient of a parameter that gets no more passes in this step.

        None if there is nothing to do: no pass has had a gradient of it.
        """
        with self._lock:
            before = self._contained.pop(param, None)
        return None if before is None else shares(before, self._weight.of_passes)[0]
