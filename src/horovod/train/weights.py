"""The weight of this rank's gradients in the average."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from horovod.errors import UsageError
from horovod.group import ReduceOp

WeightSource: TypeAlias = float | Callable[[], float] | None
"""A weight, what returns the weight of the next step, or None for equal weights."""


class GradientWeight:
    """Says one weight for all gradients of a step.

    Args:
        source: the weight of each step.

    Raises:
        UsageError: it is no finite number of at least 0.
    """

    def __init__(self, source: WeightSource) -> None:
        self.change(source)

    def change(self, source: WeightSource) -> None:
        """Sets the weight from the next step on; raises like the constructor."""
        self._source = source if callable(source) or source is None else check_weight(source)
        self.begin_step()

    def begin_step(self) -> None:
        """Forgets the weight of the step that ended."""
        self._of_step: float | None = None

    def of_step(self) -> float | None:
        """The weight of this step's gradients, None for equal weights on all ranks.

        Raises:
            UsageError: the source returned no finite number of at least 0.
        """
        if self._of_step is None and self._source is not None:
            source = self._source
            self._of_step = check_weight(source() if callable(source) else source)
        return self._of_step


def check_weight(weight: float) -> float:
    """Returns a weight as a float.

    Raises:
        UsageError: it is no finite number of at least 0.
    """
    try:
        value = float(weight)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or value < 0.0:
        raise UsageError(f"weight={weight!r} must be a finite number of at least 0")
    return value


def check_weighting(weight: WeightSource, op: ReduceOp) -> None:
    """Refuses weights of what is no average.

    Raises:
        UsageError: there is a weight and ``op`` is not Average.
    """
    if weight is not None and op != ReduceOp.AVERAGE:
        raise UsageError(f"weight needs op=Average, not {op.name}")
