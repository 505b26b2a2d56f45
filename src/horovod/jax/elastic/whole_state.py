"""Optimizer states in shares, as an elastic job keeps them: whole, in host memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from horovod.jax.shares.state import (
    Layout,
    ShardedState,
    gather_state,
    holds_shares,
    is_sharded,
    map_sharded,
    part_of,
)

if TYPE_CHECKING:
    from horovod._train.division import Division, Shape
    from horovod.jax.interface_types import PyTree


@dataclass(frozen=True, eq=False)
class WholeState:
    """A leaf of a tree, in the place of a :class:`horovod.jax.ShardedState`; nobody changes it.

    Attributes:
        inner_state: the state with whole arrays, of NumPy where they were in shares.
        shapes: see :class:`horovod.jax.shares.state.Layout`.
    """

    inner_state: Any
    shapes: tuple[Shape | None, ...]

    def __deepcopy__(self, _: Any) -> WholeState:
        return self


def join(tree: PyTree) -> Any:
    """Return a tree with whole states in the places of those in shares; collective.

    Raises:
        UsageError: the shares are those of other ranks.
        HorovodInternalError: the job failed.
    """

    def joined(state: ShardedState) -> WholeState:
        leaves, structure = jax.tree.flatten(gather_state(state))
        # Programs may be given the memory of an array of JAX.
        kept = [jax.device_get(leaf) for leaf in leaves]
        return WholeState(jax.tree.unflatten(structure, kept), state.layout.shapes)

    return map_sharded(joined, tree)


def divide(tree: PyTree, division: Division) -> Any:
    """Return a tree with the parts of a rank in the places of whole states."""

    def part(leaf: Any) -> Any:
        if not isinstance(leaf, WholeState):
            return leaf
        found = part_of(leaf.inner_state, Layout(division, leaf.shapes))
        return jax.tree.map(jax.numpy.asarray, found)

    return jax.tree.map(part, tree)


def holds_whole(tree: PyTree) -> bool:
    """Whether a tree holds a :class:`WholeState`."""
    return any(isinstance(leaf, WholeState) for leaf in jax.tree.leaves(tree))


def is_divided_as(tree: PyTree, division: Division) -> bool:
    """Whether all that a tree holds of optimizer states in shares are parts of a division."""
    nodes = jax.tree.leaves(tree, is_leaf=is_sharded)
    parts = [node.layout.division for node in nodes if is_sharded(node)]
    return not holds_whole(tree) and all(each == division for each in parts)


def is_divided(tree: PyTree) -> bool:
    """Whether a tree holds an optimizer state in shares, or what is kept of one."""
    return holds_shares(tree) or holds_whole(tree)
