"""Arguments that optimizers and tapes of all adapters have, and what is said of wrong ones."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TypeVar

from horovod._rank import context
from horovod._train.process_set import group_of
from horovod._train.reduce_op import Average, resolve_reduce_op
from horovod.errors import UsageError

if TYPE_CHECKING:
    from horovod._rank.group import Group, ReduceOp
    from horovod._train.process_set import ProcessSet

G = TypeVar("G")


def checked_reduction(op: int, predivide_factor: float) -> ReduceOp:
    """The reduction that an optimizer is asked for.

    Args:
        op: the reduction.
        predivide_factor: gradients are divided by it before the sum, and by the rest after it.

    Raises:
        UsageError: ``op`` is no reduction, or does not go with the factor, or that is 0.
    """
    reduction = resolve_reduce_op(op)
    if predivide_factor != 1.0 and reduction is not Average:
        raise UsageError("gradient_predivide_factor needs op=Average")
    if predivide_factor == 0.0:
        raise UsageError("gradient_predivide_factor=0 cannot divide")
    return reduction


def groups_asked_for(num_groups: int, groups: G, stacklevel: int = 3) -> G | int:
    """The argument ``groups``, or its older form.

    Args:
        num_groups: deprecated; counts if ``groups`` is None.
        groups: what is reduced together.
        stacklevel: frames from here to the line that the warning points at.
    """
    if num_groups == 0:
        return groups
    warnings.warn("num_groups is deprecated; use groups", DeprecationWarning, stacklevel=stacklevel)
    return num_groups if groups is None else groups


def reduces(group: Group) -> bool:
    """Whether there is anything to do; ranks outside of the set keep their own gradients."""
    return group.size > 1 and group.is_member


def warn_of_plain_copy(process_set: ProcessSet, stacklevel: int) -> None:
    """Says that what is copied or pickled now becomes an optimizer that reduces nothing.

    Args:
        process_set: the ranks of the optimizer; nothing is said of a single one.
        stacklevel: frames from here to the line that the warning points at.
    """
    if context.is_initialized() and reduces(group_of(process_set)):
        warnings.warn(
            "a copy or pickle of a DistributedOptimizer is the plain optimizer, with which each "
            "rank trains alone; wrap it again with hvd.DistributedOptimizer",
            stacklevel=stacklevel + 1,
        )
