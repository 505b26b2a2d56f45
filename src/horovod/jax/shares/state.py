"""The state of an optimizer on one rank, which has its share of it, and the whole of it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from horovod._train.division import Division, Shape
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod.errors import UsageError
from horovod.jax.calls import outside_of_jit
from horovod.jax.ops import allgather, alltoall, synchronize

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.jax.interface_types import PyTree

__all__ = ["ShardedState", "gather_state", "shard_state"]


@dataclass(frozen=True)
class Layout:
    """How the arrays of a state are divided.

    Attributes:
        division: which elements this rank has.
        shapes: of the whole arrays, leaf by leaf; None for a leaf that each rank has whole.
    """

    division: Division
    shapes: tuple[Shape | None, ...]


@jax.tree_util.register_pytree_with_keys_class
class ShardedState:
    """The state of ``hvd.DistributedOptimizer(tx, shard_state=True)`` on one rank.

    Attributes:
        inner_state: the state of ``tx``. Arrays with the shape of a parameter are in one dimension
            and hold the elements of this rank; all others are whole.
        layout: how they are divided.
    """

    def __init__(self, inner_state: Any, layout: Layout) -> None:
        self.inner_state = inner_state
        self.layout = layout

    def tree_flatten_with_keys(self) -> tuple[Any, Layout]:
        """Return the state with its name, and the layout, which programs are compiled for."""
        return ((jax.tree_util.GetAttrKey("inner_state"), self.inner_state),), self.layout

    def tree_flatten(self) -> tuple[Any, Layout]:
        """Return the state, and the layout."""
        return (self.inner_state,), self.layout

    @classmethod
    def tree_unflatten(cls, layout: Layout, children: Any) -> ShardedState:
        """Return the state of :meth:`tree_flatten`."""
        return cls(children[0], layout)

    def __repr__(self) -> str:
        division = self.layout.division
        return f"ShardedState(rank {division.rank} of {division.size}, {self.inner_state!r})"


def is_sharded(node: object) -> bool:
    """Whether a node of a tree is the state of an optimizer in shares."""
    return isinstance(node, ShardedState)


def holds_shares(tree: PyTree) -> bool:
    """Whether a tree holds a :class:`ShardedState`."""
    return any(map(is_sharded, jax.tree.leaves(tree, is_leaf=is_sharded)))


def map_sharded(function: Callable[[Any], Any], tree: PyTree) -> Any:
    """Return a tree with the results of a function in the places of :class:`ShardedState`."""
    return jax.tree.map(
        lambda node: function(node) if is_sharded(node) else node, tree, is_leaf=is_sharded
    )


def without_parts(tree: PyTree) -> Any:
    """Return a tree with None in place of the arrays of which each rank has its share."""

    def common(state: ShardedState) -> Any:
        leaves, structure = jax.tree.flatten(state.inner_state)
        shapes = state.layout.shapes
        kept = [leaf if s is None else None for leaf, s in zip(leaves, shapes, strict=True)]
        return jax.tree.unflatten(structure, kept)

    return map_sharded(common, tree)


def refuse_shares(tree: PyTree) -> None:
    """Refuse a tree that holds a state in shares.

    Raises:
        UsageError: it does; names its path.
    """
    for path, node in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_sharded)[0]:
        if is_sharded(node):
            raise UsageError(
                f"{jax.tree_util.keystr(path) or 'the tree'} is a share of the state of an "
                "optimizer with shard_state=True: each rank has its own. Broadcast the parameters "
                "before tx.init(params); or divide a whole state by hvd.shard_state(state, params)"
            )


def layout_of(state: PyTree, params: PyTree, division: Division) -> Layout:
    """Return the layout of a state of whole arrays, which may be abstract."""
    shapes = {np.shape(leaf) for leaf in jax.tree.leaves(params)} - {()}
    leaves = jax.tree.leaves(state)
    return Layout(division, tuple(leaf.shape if _is_divided(leaf, shapes) else None
                                  for leaf in leaves))  # fmt: skip


def _is_divided(leaf: Any, shapes: set[Shape]) -> bool:
    shape, dtype = np.shape(leaf), getattr(leaf, "dtype", None)
    is_key = dtype is None or jax.dtypes.issubdtype(dtype, jax.dtypes.extended)
    return shape in shapes and not is_key and not (dtype == np.uint32 and shape == (2,))


def check_division(state: Any, division: Division) -> None:
    """Refuse what is no state in shares, or is that of other ranks.

    Raises:
        UsageError: it is.
    """
    if not is_sharded(state):
        raise UsageError(
            f"the state of an optimizer with shard_state=True is a {type(state).__name__}, not in "
            "shares: make it by tx.init(params), or divide a whole one by "
            "hvd.shard_state(state, params)"
        )
    known = state.layout.division
    if known != division:
        raise UsageError(
            f"the state of the optimizer is the share of rank {known.rank} of {known.size}, but "
            f"this is rank {division.rank} of {division.size}: divide the whole state again by "
            "hvd.shard_state(state, params); hvd.elastic.JaxState does so when the job changes"
        )


def shard_state(state: PyTree, params: PyTree, process_set: ProcessSet = global_process_set) -> Any:
    """Return this rank's share of the whole state of an optimizer; sends nothing.

    Args:
        state: what :func:`gather_state` returned, or an optimizer of optax without Horovod has, the
            same on all ranks. It may be of a job with another number of ranks.
        params: the parameters, whole.
        process_set: that of the optimizer.

    Raises:
        UsageError: the state is in shares already.
        NotInitializedError: ``hvd.init()`` was not called.

    Example:
        >>> opt_state = hvd.shard_state(restored["opt_state"], params)
    """
    if holds_shares(state):
        raise UsageError("hvd.shard_state: the state is in shares already")
    division = Division.of(process_set)
    if hasattr(state, "inner_state") and hasattr(state, "accumulated"):
        return state._replace(inner_state=shard_state(state.inner_state, params, process_set))
    return part_of(state, layout_of(state, params, division))


def part_of(state: PyTree, layout: Layout) -> ShardedState:
    """Return the part of a whole state that a layout says."""
    leaves, structure = jax.tree.flatten(state)
    parts = [
        leaf if shape is None else layout.division.piece_of(leaf)
        for leaf, shape in zip(leaves, layout.shapes, strict=True)
    ]
    return ShardedState(jax.tree.unflatten(structure, parts), layout)


@outside_of_jit
def gather_state(
    tree: PyTree,
    root_rank: int | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return a tree in which each :class:`ShardedState` is the whole state; collective.

    All ranks must call it, outside of jit. The result has the structure that the state has without
    Horovod, so a checkpoint of it loads there, and into a job with any number of ranks.

    Args:
        tree: the state of an optimizer, or a tree that holds it.
        root_rank: the one rank that gets it; None for all ranks.
        process_set: that of the optimizer.

    Returns:
        The tree, with arrays of NumPy where parts were, in host memory; None on all other ranks
        than the root.

    Raises:
        UsageError: the shares are those of other ranks, as after a change of the job.
        HorovodInternalError: the job failed.

    Example:
        >>> whole = hvd.gather_state(opt_state, root_rank=0)
        >>> if hvd.rank() == 0:
        ...     checkpointer.save(path, {"params": params, "opt_state": whole})
    """
    group = group_of(process_set)
    division = Division.of(process_set)
    if root_rank is not None and root_rank not in group.ranks:
        raise UsageError(f"root_rank={root_rank} is none of the ranks {list(group.ranks)}")
    is_root = root_rank is None or group.ranks[group.rank] == root_rank
    numbers = iter(range(2**31))

    def join(piece: Any, shape: Shape) -> Any:
        if division.size == 1:
            return np.array(piece).reshape(shape)
        name = f"gather_state.{next(numbers)}"
        if root_rank is None:
            got = allgather(piece, name=name, process_set=process_set)
        else:
            splits = [piece.shape[0] * (rank == root_rank) for rank in group.ranks]
            got, _ = alltoall(piece, splits, name=name, process_set=process_set)
        return np.array(synchronize(got)).reshape(shape) if is_root else None

    def whole(state: ShardedState) -> Any:
        check_division(state, division)
        leaves, structure = jax.tree.flatten(state.inner_state)
        shapes = state.layout.shapes
        joined = [
            leaf if shape is None else join(leaf, shape)
            for leaf, shape in zip(leaves, shapes, strict=True)
        ]
        return jax.tree.unflatten(structure, joined)

    found = map_sharded(whole, tree)
    return found if is_root else None
