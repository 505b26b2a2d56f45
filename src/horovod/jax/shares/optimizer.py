"""An optimizer of optax of whose state each rank has its share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from horovod._train.division import Division
from horovod.errors import UsageError
from horovod.jax.gradients import check_gradients, is_float0
from horovod.jax.shares.evaluation import Evaluation
from horovod.jax.shares.state import Layout, ShardedState, check_division, layout_of
from horovod.jax.shares.values import Share, Value, Whole, piece_of, whole_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._rank.reduction import ReduceOp
    from horovod.jax.shares.exchange import Exchange


class ShardedOptimizer:
    """Gives each rank its share of the gradients and of the state, and all ranks the updates.

    Args:
        inner: the optimizer of optax, with extra arguments.
        exchange: the collectives.
    """

    def __init__(self, inner: Any, exchange: Exchange) -> None:
        self._inner = inner
        self._exchange = exchange

    def init(self, params: Any) -> ShardedState:
        """Return this rank's share of the state; sends nothing.

        Args:
            params: whole, the same on all ranks.
        """
        division = Division.of(self._exchange.process_set)
        program, shapes = jax.make_jaxpr(self._inner.init, return_shape=True)(params)
        layout = layout_of(shapes, params, division)
        values = [Whole(leaf) for leaf in jax.tree.leaves(params)]
        results = self._evaluation(division).run(program, values)
        return _state_of(results, jax.tree.structure(shapes), layout)

    def update(
        self, grads: Any, state: Any, params: Any = None, *, weight: Any = None, **extra: Any
    ) -> tuple[Any, ShardedState]:
        """Return the updates, which are whole, and this rank's share of the state.

        Args:
            grads: of this rank.
            state: what :meth:`init` or this method returned.
            params: whole.
            weight: of this rank in the average.
            extra: what the optimizer takes besides; the same on all ranks.

        Raises:
            UsageError: an argument is wrong, the state is that of other ranks, or the optimizer
                computes what a rank cannot with its share.
        """
        division = Division.of(self._exchange.process_set)
        check_division(state, division)
        paths = _checked(grads)
        leaves, structure = jax.tree.flatten(grads)
        gradients = self._exchange.scatter(leaves, paths, weight, division)
        parts, state_structure = jax.tree.flatten(state.inner_state)
        kept = _values_of(parts, state.layout)
        avals = (
            jax.tree.unflatten(structure, [_aval(value) for value in gradients]),
            jax.tree.unflatten(state_structure, [_aval(value) for value in kept]),
            params,
        )

        def whole(grads: Any, state: Any, params: Any) -> Any:
            return self._inner.update(grads, state, params, **extra)

        program, (updates, new_state) = jax.make_jaxpr(whole, return_shape=True)(*avals)
        others = [Whole(leaf) for leaf in jax.tree.leaves(params)]
        results = self._evaluation(division).run(program, [*gradients, *kept, *others])
        count = len(jax.tree.leaves(updates))
        new = _state_of(results[count:], jax.tree.structure(new_state), state.layout)
        paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(updates)]
        arrays = self._exchange.gather(results[:count], paths, division)
        return jax.tree.unflatten(jax.tree.structure(updates), arrays), new

    def _evaluation(self, division: Division) -> Evaluation:
        count = iter(range(2**31))

        def reduce(numbers: list[Any], op: ReduceOp) -> list[Any]:
            if division.size == 1:
                return numbers
            return self._exchange.reduce_numbers(numbers, op, f"norms.{next(count)}")

        return Evaluation(division, reduce)


def _values_of(parts: Sequence[Any], layout: Layout) -> list[Value]:
    if len(parts) != len(layout.shapes):
        raise UsageError(
            f"the state of the optimizer has {len(parts)} arrays, but {len(layout.shapes)} when it "
            "was divided: make it by tx.init(params)"
        )
    return [
        Whole(part) if shape is None else Share(part, shape)
        for part, shape in zip(parts, layout.shapes, strict=True)
    ]


def _state_of(results: Sequence[Value], structure: Any, layout: Layout) -> ShardedState:
    if len(results) != len(layout.shapes):
        raise UsageError(
            "shard_state=True: the state of the optimizer has another number of arrays after an "
            "update than at first"
        )
    parts = [
        _whole(value) if shape is None else piece_of(value, layout.division)
        for value, shape in zip(results, layout.shapes, strict=True)
    ]
    return ShardedState(jax.tree.unflatten(structure, parts), layout)


def _whole(value: Value) -> Any:
    if isinstance(value, Share):
        raise UsageError(
            f"shard_state=True: the optimizer keeps an array of shape {value.shape} that depends "
            "on gradients and has the shape of no parameter, so a rank cannot have a share: use "
            "another transform, or leave shard_state out"
        )
    array = whole_of(value)
    return array if isinstance(array, jax.Array) else jnp.asarray(array)


def _aval(value: Value) -> Any:
    """Return the whole array that a value stands for, as programs are traced with it."""
    if isinstance(value, Share):
        return jax.ShapeDtypeStruct(
            value.shape, value.piece.dtype, weak_type=getattr(value.piece, "weak_type", False)
        )
    assert isinstance(value, Whole)
    return value.array


def _checked(grads: Any) -> list[str]:
    """Return the paths of the leaves of a tree of gradients.

    Raises:
        UsageError: a leaf is no gradient, or of a dtype that parts cannot have.
    """
    paths = check_gradients(grads)
    for leaf, path in zip(jax.tree.leaves(grads), paths, strict=True):
        if is_float0(leaf) or jnp.iscomplexobj(leaf):
            kind = "float0" if is_float0(leaf) else jnp.result_type(leaf).name
            raise UsageError(
                f"the gradient {path} is {kind}, which shard_state=True cannot divide: give real "
                "floating-point numbers, and None in place of what has no gradient"
            )
    return paths
