"""The norm of a tree of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from horovod.jax.gradients import check_gradients, is_float0

if TYPE_CHECKING:
    from horovod.jax.interface_types import PyTree


def gradient_norm(grads: PyTree) -> jax.Array:
    """Return the 2-norm of all gradients of a tree together; also inside of jit.

    Of what ``hvd.grad``, ``hvd.value_and_grad`` or ``hvd.reduce_gradients`` has returned it is that
    of the reduced gradients, which are the same on all ranks, so nothing is sent; of others it is
    that of this rank.

    Args:
        grads: arrays of floating or complex dtypes; others have no gradients and do not count.

    Returns:
        An array of no dimension, float32, or float64 if a gradient is.

    Raises:
        UsageError: the tree holds something that is no array.

    Example:
        >>> loss, grads = hvd.value_and_grad(loss_of)(params, batch)
        >>> hvd.log(loss=loss, gradient_norm=hvd.gradient_norm(grads))
    """
    check_gradients(grads)
    leaves = [leaf for leaf in jax.tree.leaves(grads) if not is_float0(leaf)]
    squares = [_square_of(jnp.asarray(leaf)) for leaf in leaves]
    return jnp.sqrt(sum(squares, jnp.float32(0)))


def _square_of(leaf: jax.Array) -> jax.Array:
    wide = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
    return jnp.sum(jnp.square(jnp.abs(wide)))
