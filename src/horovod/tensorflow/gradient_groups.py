"""Which gradients are reduced in one operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._train.gradients import group_positions, small_together

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from horovod._train.optimizer_options import CheckedGroups


def variable_key(variable: Any) -> Hashable:
    """Return the key of a variable: the same for a Keras variable and the ``tf.Variable`` in it."""
    if not isinstance(variable, tf.Variable):
        held = getattr(variable, "value", None)
        variable = held if isinstance(held, tf.Variable) else variable
    key: Hashable = variable.ref()
    return key


def members_of(
    groups: CheckedGroups, keys: Sequence[Hashable], sizes: Sequence[int | None]
) -> tuple[tuple[int, ...], ...]:
    """The places of the gradients that are reduced together.

    Args:
        groups: see :func:`horovod._train.optimizer_options.checked_groups`; None puts small
            gradients together.
        keys: of the variables that the gradients belong to.
        sizes: of the gradients in bytes; None if unknown, or if it goes alone unless asked for.
    """
    return group_positions(groups, keys, small_together(sizes))
