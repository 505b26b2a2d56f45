"""Arguments that optimizers and tapes of all adapters have, and what is said of wrong ones."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar

from horovod._rank import context
from horovod._train.process_set import group_of
from horovod._train.reduce_op import Average, resolve_reduce_op
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from horovod._rank.group import Group
    from horovod._rank.reduction import ReduceOp
    from horovod._train.compression import CompressorLike
    from horovod._train.process_set import ProcessSet

G = TypeVar("G")

Groups: TypeAlias = "int | Sequence[Sequence[Any]] | None"
"""How many groups, or lists of variables whose gradients are reduced together."""

CheckedGroups: TypeAlias = "int | tuple[tuple[Hashable, ...], ...] | None"
"""The same with the keys of variables; None leaves it to the adapter."""


class ReductionOptions(TypedDict, total=False):
    """Arguments of the tapes and optimizers of TensorFlow and Keras, by the names users know."""

    op: int
    gradient_predivide_factor: float
    num_groups: int
    groups: Groups
    compression: CompressorLike
    sparse_as_dense: bool
    process_set: ProcessSet
    device_dense: str
    device_sparse: str
    scale_local_gradients: bool


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


def checked_groups(groups: Groups, key: Callable[[Any], Hashable]) -> CheckedGroups:
    """Make something of the argument ``groups`` that can be hashed.

    Args:
        groups: as users gave it.
        key: of a variable; raises TypeError or AttributeError for what is no variable.

    Raises:
        UsageError: it is neither a positive number nor lists of variables, each there once.
    """
    if groups is None:
        return None
    if isinstance(groups, int):
        if groups < 1:
            raise UsageError(f"groups={groups} must be at least 1, or a list of lists of variables")
        return groups
    try:
        keyed = tuple(tuple(map(key, group)) for group in groups)
    except (TypeError, AttributeError):
        raise UsageError(
            f"groups={groups!r} is neither a number nor a list of lists of variables"
        ) from None
    listed = [each for group in keyed for each in group]
    if len(set(listed)) != len(listed):
        raise UsageError("groups: a variable is there twice")
    return keyed


def reduces(group: Group) -> bool:
    """Whether there is anything to do; ranks outside of the set keep their own gradients."""
    return group.size > 1 and group.is_member


def warn_of_plain_copy(
    process_set: ProcessSet, stacklevel: int, kind: str = "DistributedOptimizer"
) -> None:
    """Says that what is copied or pickled now becomes an optimizer that reduces nothing.

    Args:
        process_set: the ranks of the optimizer; nothing is said of a single one.
        stacklevel: frames from here to the line that the warning points at.
        kind: what has made the optimizer from the plain one.
    """
    if context.is_initialized() and reduces(group_of(process_set)):
        warnings.warn(
            f"a copy or pickle of what hvd.{kind} made is the plain optimizer, with which each "
            f"rank trains alone; wrap it again with hvd.{kind}",
            stacklevel=stacklevel + 1,
        )
