"""The reduction that a call asks for: ``op``, or the older ``average`` flag, and its factors."""

from __future__ import annotations

import warnings

from horovod._rank.reduction import PLAIN_AVERAGE, PLAIN_SUM, ReduceOp, Reduction
from horovod._train.weights import check_weight
from horovod.errors import UsageError

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT

_BY_NUMBER = {int(op): op for op in ReduceOp}
# By what a caller gives as `op`: most reductions have no factors, and small tensors wait for them.
_PLAIN: dict[int | None, Reduction] = {op: Reduction(op) for op in ReduceOp}
# The very objects that groups tell at a glance.
_PLAIN |= {None: PLAIN_AVERAGE, Average: PLAIN_AVERAGE, Sum: PLAIN_SUM}


def resolve_reduce_op(op: int | None, average: bool | None = None, stacklevel: int = 3) -> ReduceOp:
    """Returns the reduction that the arguments of a collective ask for.

    Args:
        op: one of Average, Sum, Min, Max, Product and Adasum; None means Average.
        average: the older flag, True for Average and False for Sum; warns that it is deprecated.
        stacklevel: frames from here to the line that the warning points at.

    Raises:
        UsageError: both are given, or ``op`` is no reduction.
    """
    if average is not None:
        if op is not None:
            raise UsageError("op and average were both given; give op alone")
        warnings.warn(
            "the argument average is deprecated; use op=hvd.Average or op=hvd.Sum",
            DeprecationWarning,
            stacklevel=stacklevel,
        )
        return Average if average else Sum
    if op is None:
        return Average
    resolved = _BY_NUMBER.get(op)
    if resolved is None:
        raise UsageError(
            f"op={op!r} is no reduction; use hvd.Average, Sum, Min, Max, Product or Adasum"
        )
    return resolved


def requested_reduction(
    op: int | None,
    average: bool | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    weight: float | None = None,
    priority: int = 0,
) -> Reduction:
    """Return the reduction that the arguments of a public function ask for.

    Args:
        op, average: as of :func:`resolve_reduce_op`.
        prescale, postscale, weight, priority: as of :class:`horovod._rank.reduction.Reduction`.

    Raises:
        UsageError: the arguments are wrong.
    """
    if average is None and prescale == 1.0 == postscale and weight is None and priority == 0:
        plain = _PLAIN.get(op)
        if plain is not None:
            return plain
    resolved = resolve_reduce_op(op, average, stacklevel=4)
    checked = None if weight is None else check_weight(weight)
    return Reduction(resolved, prescale, postscale, checked, priority)


def is_power_of_two(num_ranks: int) -> bool:
    """Whether a number of ranks is 1, 2, 4, 8, …, which Adasum once needed."""
    return num_ranks > 0 and num_ranks & (num_ranks - 1) == 0
