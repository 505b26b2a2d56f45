"""Which gradients are reduced in one operation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from horovod._train.gradients import split_list
from horovod.errors import UsageError

Groups: TypeAlias = int | Sequence[Sequence[Any]] | None
"""How many groups, or lists of variables whose gradients are reduced together."""

CheckedGroups: TypeAlias = int | tuple[tuple[Hashable, ...], ...] | None
"""The same with the keys of variables; None puts small gradients together."""

GROUP_BYTES = 4 << 20
"""Gradients that are reduced together without being asked for hold at most so many bytes."""


def variable_key(variable: Any) -> Hashable:
    """Return the key of a variable: the same for a Keras variable and the ``tf.Variable`` in it."""
    if not isinstance(variable, tf.Variable):
        held = getattr(variable, "value", None)
        variable = held if isinstance(held, tf.Variable) else variable
    key: Hashable = variable.ref()
    return key


def checked_groups(groups: Groups) -> CheckedGroups:
    """Makes something of the argument ``groups`` that can be hashed.

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
        keyed = tuple(tuple(variable_key(variable) for variable in group) for group in groups)
    except (TypeError, AttributeError):
        raise UsageError(
            f"groups={groups!r} is neither a number nor a list of lists of variables"
        ) from None
    listed = [key for group in keyed for key in group]
    if len(set(listed)) != len(listed):
        raise UsageError("groups: a variable is there twice")
    return keyed


def members_of(
    groups: CheckedGroups, keys: Sequence[Hashable], sizes: Sequence[int | None]
) -> tuple[tuple[int, ...], ...]:
    """The places of the gradients that are reduced together.

    Args:
        groups: what :func:`checked_groups` returned.
        keys: of the variables that the gradients belong to.
        sizes: of the gradients in bytes; None if unknown, or if it goes alone unless asked for.
    """
    everything = range(len(keys))
    if groups is None:
        return small_together(sizes)
    if isinstance(groups, int):
        parts = split_list(everything, groups)
    else:
        place_of = {key: i for i, key in enumerate(keys)}
        parts = [[place_of[key] for key in group if key in place_of] for group in groups]
        grouped = {i for part in parts for i in part}
        parts += [[i] for i in everything if i not in grouped]
    return tuple(tuple(part) for part in parts if part)


def small_together(sizes: Sequence[int | None]) -> tuple[tuple[int, ...], ...]:
    """Puts small gradients into one operation: each costs TensorFlow and the engine some time.

    Args:
        sizes: in bytes; None is not put together with others.

    Returns:
        The places of ``sizes``, each once, in groups of at most ``GROUP_BYTES``, but for those of
        one place. Groups are in the order of their first places.
    """
    groups: list[list[int]] = []
    open_group: list[int] = []
    room = 0
    for place, size in enumerate(sizes):
        if size is None or size > GROUP_BYTES:
            groups.append([place])
            continue
        if size > room or not open_group:
            open_group, room = [], GROUP_BYTES
            groups.append(open_group)
        open_group.append(place)
        room -= size
    return tuple(map(tuple, groups))
