"""Starting all ranks from the same parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod.jax.calls import refuse_within_jit
from horovod.jax.ops import broadcast, synchronize
from horovod.train import objects
from horovod.train.call_site import call_site
from horovod.train.process_set import ProcessSet, global_process_set, group_of
from horovod.train.same_parameters import Parameter, check_same_parameters

_PLAIN = (bool, int, float, complex, str, bytes)


def broadcast_parameters(
    tree: Any,
    root_rank: int = 0,
    *,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> Any:
    """Returns the root's values of a tree; not inside of jit.

    Args:
        tree: parameters, the state of an optimizer, or any other tree. Arrays travel as one
            operation, typed keys of random numbers included; Python's numbers and strings keep
            their types; other leaves, such as functions, stay those of this rank.
        root_rank: the global rank whose values count.
        process_set: the ranks that take part.
        name: what the ranks agree on.

    Returns:
        A tree of the same structure; NumPy's arrays have become arrays of JAX.

    Raises:
        MismatchError: the trees do not have the same structure, shapes and dtypes; the message
            names the paths.
        HorovodInternalError: the job failed.

    Example:
        >>> params = hvd.broadcast_parameters(params, root_rank=0)
    """
    refuse_within_jit("broadcast_parameters")
    site = call_site()
    name = "parameters" if name is None else name
    group = group_of(process_set)
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    described = [_described(jax.tree_util.keystr(path), leaf) for path, leaf in pairs]
    check_same_parameters(group, described, f"{name}.structure", site)
    leaves = [leaf for _, leaf in pairs]
    arrays = {i: _sent(leaf) for i, leaf in enumerate(leaves) if is_array(leaf)}
    plain = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, _PLAIN)}
    sent = broadcast(list(arrays.values()), root_rank, name=name, process_set=process_set)
    for i, got in zip(arrays, synchronize(sent), strict=True):
        leaves[i] = _received(got, leaves[i])
    if plain:
        theirs = objects.broadcast_object(group, plain, root_rank, f"{name}.plain", site)
        for i, value in theirs.items():
            leaves[i] = value
    return jax.tree.unflatten(structure, leaves)


broadcast_optimizer_state = broadcast_parameters


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, of JAX or NumPy."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def is_key(leaf: Any) -> bool:
    """Whether a leaf holds typed keys of random numbers."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _sent(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if is_key(leaf) else jnp.asarray(leaf)


def _received(got: Any, leaf: Any) -> Any:
    return jax.random.wrap_key_data(got, impl=jax.random.key_impl(leaf)) if is_key(leaf) else got


def _described(path: str, leaf: Any) -> Parameter:
    layout = f"{leaf.dtype} {leaf.shape}" if is_array(leaf) else type(leaf).__name__
    return Parameter(path, layout, path)
