"""What a rank knows of an array of a program whose arrays are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax.numpy as jnp

if TYPE_CHECKING:
    from horovod._rank.reduction import ReduceOp
    from horovod._train.division import Division, Shape


class Whole(NamedTuple):
    """All of it, the same on all ranks."""

    array: Any


class Splat(NamedTuple):
    """A scalar that all elements are equal to, the same on all ranks."""

    scalar: Any
    shape: Shape


class Share(NamedTuple):
    """The elements of this rank, in one dimension; ``shape`` is that of the whole array."""

    piece: Any
    shape: Shape


class Partial(NamedTuple):
    """A scalar that is the reduction of those of all ranks."""

    scalar: Any
    op: ReduceOp


Value: TypeAlias = "Whole | Splat | Share | Partial"


def whole_of(value: Value) -> Any:
    """Return the whole array of a :class:`Whole` or a :class:`Splat`."""
    if isinstance(value, Splat):
        return jnp.full(value.shape, value.scalar)
    assert isinstance(value, Whole)
    return value.array


def piece_of(value: Value, division: Division) -> Any:
    """Return this rank's elements of an array of at least one dimension, in one dimension."""
    if isinstance(value, Share):
        return value.piece
    if isinstance(value, Splat):
        begin, end = division.range_of(value.shape)
        return jnp.full((end - begin,), value.scalar)
    assert isinstance(value, Whole)
    return division.piece_of(jnp.asarray(value.array))
