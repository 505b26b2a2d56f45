"""Whether arrays have the same bits on all ranks, asked within programs of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from horovod._rank.reduction import ReduceOp
from horovod._train import sync_check
from horovod._train.process_set import group_of
from horovod.errors import ReplicasDivergedError
from horovod.jax.calls import is_traced
from horovod.jax.ops import allreduce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._train.process_set import ProcessSet

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


def check_equal(
    arrays: Sequence[Any], names: Sequence[str], process_set: ProcessSet, name: str, what: str
) -> Any:
    """Compare arrays between ranks, inside or outside of jit; collective.

    Args:
        arrays: at least one, of the same shapes and dtypes on all ranks.
        names: of the arrays, for messages.
        process_set: the ranks that compare; this one is among them.
        name: what the ranks agree on.
        what: begins the message of the error.

    Returns:
        int32 0, which is known once the arrays have been compared.

    Raises:
        ReplicasDivergedError: an array has other bits somewhere; in a jitted program a
            ``JaxRuntimeError`` with this text.
    """
    group = group_of(process_set)
    own = jnp.stack([_digest(jnp.asarray(array)) for array in arrays])
    # As a sum: a rank that has joined adds zeros, where it would give a gather other rows.
    table = jnp.zeros((group.size, *own.shape), own.dtype).at[group.rank].set(own)
    table = allreduce(table, op=ReduceOp.SUM, name=name, process_set=process_set)

    def compare(found: Any) -> Any:
        try:
            sync_check.check_digests(names, np.asarray(found), group.ranks)
        except ReplicasDivergedError as error:
            raise ReplicasDivergedError(
                f"{what}{error.message}", error.tensors, error.ranks
            ) from None
        return np.int32(0)

    def compare_in_program(found: Any) -> Any:
        try:
            return compare(found)
        except ReplicasDivergedError as error:
            # JAX leaves out the module of a class, by which our errors are found again.
            kind = type(error)
            text = f"{kind.__module__}.{kind.__qualname__}: {error.message}"
            raise RuntimeError(text) from None

    if not is_traced():
        return jnp.asarray(compare(table))
    return io_callback(compare_in_program, jax.ShapeDtypeStruct((), jnp.int32), table)


def _digest(array: Any) -> Any:
    """Two words of 32 bits that depend on each bit of an array and its place."""
    if jnp.iscomplexobj(array):
        array = jnp.stack([array.real, array.imag])
    words = jax.lax.bitcast_convert_type(array, _WORDS[array.dtype.itemsize])
    words = words.reshape(-1).astype(jnp.uint32)
    places = jax.lax.iota(jnp.uint32, words.size)
    # The final mixing steps of MurmurHash3 spread each bit; nobody here tries to find a collision.
    mixed = (words ^ (places * jnp.uint32(0x9E3779B9))) * jnp.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
    mixed = mixed ^ (mixed >> 16)
    # 1 besides, so that not even an empty array has the digest of a rank that has joined.
    weights = 2 * places + 1
    total = jnp.sum(mixed, dtype=jnp.uint32)
    weighted = jnp.sum(mixed * weights, dtype=jnp.uint32)
    return jnp.stack([total, weighted | 1])
