"""What a training program with JAX has reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod._rank import context
from horovod._train.elastic.state import ObjectState
from horovod.jax.objects import broadcast_object
from horovod.jax.state import is_key

if TYPE_CHECKING:
    from horovod._train.elastic.checkpoint.commits import Snapshot
    from horovod.jax.interface_types import PyTree

__all__ = ["JaxState"]


class JaxState(ObjectState):
    """What a training program has reached: trees of arrays, and objects.

    Snapshots are in host memory, so the arrays may be donated to jitted functions. A snapshot
    brings arrays back as arrays of JAX, those of NumPy included.

    Args:
        kwargs: the attributes and their first values, the same names on all ranks.

    Raises:
        UsageError: an attribute would hide one of the state itself.
    """

    def __init__(self, **kwargs: PyTree) -> None:
        super().__init__(broadcast_object, context.rank, **kwargs)
        self.save()

    def save(self) -> None:
        super().save()
        self._saved = {name: _host(value) for name, value in self._saved.items()}

    def restore(self) -> None:
        super().restore()
        self._to_device()

    def _load(self, path: str, snapshot: Snapshot) -> None:
        super()._load(path, snapshot)
        self._to_device()

    def _broadcast(self, obj: Any, root: int | None = None) -> Any:
        return _device(super()._broadcast(_host(obj), root))

    def _to_device(self) -> None:
        for name in self._plain():
            self.__dict__[name] = _device(getattr(self, name))


def _host(tree: Any) -> Any:
    def copied(leaf: Any) -> Any:
        is_array = isinstance(leaf, jax.Array) and not is_key(leaf)
        return np.array(leaf) if is_array else leaf

    return jax.tree.map(copied, tree)


def _device(tree: Any) -> Any:
    def moved(leaf: Any) -> Any:
        is_array = isinstance(leaf, np.ndarray) and _is_known(leaf.dtype)
        return jnp.array(leaf) if is_array else leaf

    return jax.tree.map(moved, tree)


def _is_known(dtype: Any) -> bool:
    """Whether JAX has arrays of this dtype now; without x64, some are for NumPy alone."""
    try:
        return bool(jax.dtypes.canonicalize_dtype(dtype) == dtype)
    except TypeError:
        return False
