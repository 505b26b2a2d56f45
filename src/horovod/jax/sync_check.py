"""Finds replicas that have diverged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from horovod._train import sync_check
from horovod._train.call_site import call_site
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.sync_check import Array
from horovod.jax.calls import outside_of_jit
from horovod.jax.error_feedback import without_errors
from horovod.jax.errors import in_our_words
from horovod.jax.shares.state import without_parts
from horovod.jax.state import is_array, is_key

if TYPE_CHECKING:
    from horovod.jax.interface_types import PyTree


@outside_of_jit
def check_in_sync(tree: PyTree, process_set: ProcessSet = global_process_set) -> None:
    """Checks that arrays and numbers have the same bits on all ranks, and says which do not.

    Every byte is read; one small operation compares all of them. All ranks of the set must call
    it, outside of jit. Leaves that are neither arrays nor numbers are passed over, and so are the
    arrays of a :class:`horovod.jax.ShardedState` of which each rank has its share, and the
    :class:`horovod.jax.GradientErrors` of each rank.

    Args:
        tree: parameters, the state of an optimizer, or any other tree.
        process_set: the ranks that compare.

    Raises:
        ReplicasDivergedError: on all ranks, if a leaf differs in bits, dtype or shape, or is
            missing on some; it names the first paths and the ranks that differ from the majority.
        HorovodInternalError: the job failed.
    """
    site = call_site()
    pairs, _ = jax.tree_util.tree_flatten_with_path(without_parts(without_errors(tree)))
    with in_our_words():
        arrays = [
            _array(jax.tree_util.keystr(path), leaf)
            for path, leaf in pairs
            if is_array(leaf) or isinstance(leaf, (bool, int, float))
        ]
    sync_check.check_in_sync(group_of(process_set), arrays, site)


def _array(name: str, leaf: Any) -> Array:
    values = np.ascontiguousarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
    layout = f"{leaf.dtype if is_array(leaf) else type(leaf).__name__} {np.shape(leaf)}"
    return Array(name, layout, values.nbytes, lambda: values.reshape(-1).view(np.uint8).data)
