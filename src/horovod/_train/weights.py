"""The weight of this rank's gradients in the average."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from horovod._rank.reduction import ReduceOp
from horovod.errors import UsageError

WeightSource: TypeAlias = float | Callable[[], float] | None
"""A weight, what returns the weight of the next step, or None for equal weights."""


class GradientWeight:
    """Says the weight of all gradients of a step.

    A step of several backward passes has a weight for each of them: :func:`shares` says how the
    passes become one gradient, which weighs as much as all of them together.

    Args:
        source: the weight of each pass.

    Raises:
        UsageError: it is no finite number of at least 0.
    """

    def __init__(self, source: WeightSource) -> None:
        self._source = _checked_source(source)
        self._of_step: float | None = None
        self._num_passes = 0
        self._total = 0.0

    @property
    def exists(self) -> bool:
        """Whether gradients have a weight now."""
        return self._source is not None

    def change(self, source: WeightSource) -> None:
        """Sets the weight from the next pass on.

        Raises:
            UsageError: it is no finite number of at least 0, or only some passes of a step would
                have a weight.
        """
        source = _checked_source(source)
        if self._num_passes and (source is None) != (self._source is None):
            raise UsageError(
                "set_weight() between the backward passes of a step: the passes before had "
                f"{'no' if self._source is None else 'a'} weight, but either all passes of a step "
                "have one or none has; call it before the first backward pass"
            )
        self._source = source
        self._of_step = None

    def begin_step(self) -> None:
        """Forgets the weights of the step that ended."""
        self._of_step = None
        self._num_passes = 0
        self._total = 0.0

    def begin_pass(self) -> float | None:
        """Counts a backward pass of several, and returns its weight; None for equal weights.

        Raises:
            UsageError: the source returned no finite number of at least 0, or those of the step
                have no finite sum.
        """
        self._num_passes += 1
        weight = self._ask()
        if weight is not None:
            self._total = check_weight(self._total + weight)
        return weight

    @property
    def of_passes(self) -> float:
        """The sum of the weights of the passes that have begun in this step."""
        return self._total

    def of_step(self) -> float | None:
        """The weight of this step's gradients, None for equal weights on all ranks.

        Raises:
            UsageError: the source returned no finite number of at least 0.
        """
        if self._num_passes and self._source is not None:
            return self._total
        if self._of_step is None:
            self._of_step = self._ask()
        return self._of_step

    def _ask(self) -> float | None:
        source = self._source
        return None if source is None else check_weight(source() if callable(source) else source)


def shares(before: float, now: float, weight: float = 0.0, passes: int = 1) -> tuple[float, float]:
    """Return the factors for the old and the new part of a weighted sum over backward passes.

    The sum is ``passes * sum(weight * gradient) / sum(weight)``: equal weights make it the plain
    sum over the passes. With ``passes=1`` it is the mean. Among ranks the value weighs as much as
    all its passes, so that the average is ``passes`` times the mean over the samples of all ranks.

    What has the share 0 is to be left out, not multiplied: it may be infinite or NaN.

    Args:
        before: the sum of the weights that the value contains.
        now: the sum of the weights of all passes until now, that of the new gradient included.
        weight: of the new gradient.
        passes: how many passes a step has; 1 where they are averaged.

    Returns:
        Two factors: of the value, and of the new gradient.

    Example:
        >>> shares(1.0, 4.0, 3.0)
        (0.25, 0.75)
    """
    if now == 0.0:
        return 1.0, 0.0
    return before / now, passes * (weight / now)


def _checked_source(source: WeightSource) -> WeightSource:
    return source if callable(source) or source is None else check_weight(source)


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
