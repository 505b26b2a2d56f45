"""Starting all ranks from the same parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod._train import objects
from horovod._train.call_site import call_site
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.same_parameters import Parameter, check_same_parameters
from horovod.errors import UsageError
from horovod.jax.calls import DTYPES, outside_of_jit
from horovod.jax.devices import put_back
from horovod.jax.ops import broadcast, synchronize
from horovod.jax.shares.state import refuse_shares

if TYPE_CHECKING:
    from horovod.jax.interface_types import PyTree

_PLAIN = (bool, int, float, complex, str, bytes)


@outside_of_jit
def broadcast_parameters(
    tree: PyTree,
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
        A tree of the same structure; arrays stay those of JAX or NumPy, with their dtypes.

    Raises:
        UsageError: an array of NumPy holds objects of Python, or a state of an optimizer is in
            shares, of which each rank has its own.
        MismatchError: the trees do not have the same structure, shapes and dtypes; the message
            names the paths.
        HorovodInternalError: the job failed.

    Example:
        >>> params = hvd.broadcast_parameters(params, root_rank=0)
    """
    refuse_shares(tree)
    site = call_site()
    name = "parameters" if name is None else name
    group = group_of(process_set)
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = [jax.tree_util.keystr(path) for path, _ in pairs]
    leaves = [leaf for _, leaf in pairs]
    described = [_described(path, leaf) for path, leaf in zip(paths, leaves, strict=True)]
    check_same_parameters(group, described, f"{name}.structure", site)
    # By their paths: some trees keep the order in which their leaves were put there.
    order = sorted(range(len(leaves)), key=paths.__getitem__)
    arrays = {i: _sent(leaves[i]) for i in order if is_array(leaves[i])}
    plain = {paths[i]: leaves[i] for i in order if isinstance(leaves[i], _PLAIN)}
    sent = broadcast(list(arrays.values()), root_rank, name=name, process_set=process_set)
    for i, got in zip(arrays, synchronize(sent), strict=True):
        leaves[i] = _received(got, leaves[i])
    if plain:
        theirs = objects.broadcast_object(group, plain, root_rank, f"{name}.plain", site)
        for i in order:
            leaves[i] = theirs.get(paths[i], leaves[i])
    return jax.tree.unflatten(structure, leaves)


broadcast_optimizer_state = broadcast_parameters


def is_array(leaf: object) -> bool:
    """Whether a leaf is an array, of JAX or NumPy."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def is_key(leaf: object) -> bool:
    """Whether a leaf holds typed keys of random numbers."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _sent(leaf: Any) -> Any:
    if is_key(leaf):
        return jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array) and leaf.dtype.name in DTYPES:
        return leaf
    # As bytes, so that nothing is cut that JAX has no dtype for now.
    return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)


def _received(got: Any, leaf: Any) -> Any:
    if is_key(leaf):
        return jax.random.wrap_key_data(got, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array) and leaf.dtype.name in DTYPES:
        return got
    values = np.array(got).view(leaf.dtype).reshape(leaf.shape)
    if isinstance(leaf, jax.Array):
        return put_back(values, leaf)
    return values if isinstance(leaf, np.ndarray) else values[()]


def _described(path: str, leaf: Any) -> Parameter:
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.hasobject:
        raise UsageError(f"the leaf {path} is an array of Python's objects: hvd.broadcast_object")
    layout = f"{leaf.dtype} {leaf.shape}" if is_array(leaf) else type(leaf).__name__
    return Parameter(path, layout, path)
