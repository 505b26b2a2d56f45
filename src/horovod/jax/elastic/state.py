"""The state of a training program with JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod._rank import context
from horovod._train.division import Division
from horovod._train.elastic.state import ObjectState, copy_of
from horovod._train.process_set import global_process_set
from horovod.jax.elastic.whole_state import divide, holds_whole, is_divided, is_divided_as, join
from horovod.jax.objects import broadcast_object
from horovod.jax.state import is_key

if TYPE_CHECKING:
    from horovod._train.elastic.checkpoint.commits import Snapshot
    from horovod.jax.interface_types import PyTree

__all__ = ["JaxState"]


class JaxState(ObjectState):
    """The state of a training program: trees of arrays, and objects.

    Snapshots are in host memory, so the arrays may be donated to jitted functions. A snapshot
    brings arrays back as arrays of JAX, those of NumPy included.

    Args:
        kwargs: the attributes and their first values, the same names on all ranks.

    Raises:
        UsageError: an attribute would hide one of the state itself.
    """

    def __init__(self, **kwargs: PyTree) -> None:
        # Of each attribute in shares, its arrays, and a copy in host memory with whole states.
        self._wholes: dict[str, tuple[Leaves, Any]] = {}
        self._division: Division | None = None
        super().__init__(broadcast_object, context.rank, **kwargs)
        # Nothing collective: newcomers come here while the others wait for them elsewhere.
        self._saved = {name: _host(value) for name, value in self._saved.items()}

    def save(self) -> None:
        super().save()
        kept = {name: self._kept(name) for name in self._plain()}
        self._saved = kept
        self._divide()

    def restore(self) -> None:
        super().restore()
        self._to_device()
        self._divide()

    def reset(self) -> None:
        super().reset()
        self._division = Division.of(global_process_set)
        self._divide()

    def sync(self) -> None:
        self._division = Division.of(global_process_set)
        known = {name: self._whole_of(name) is not None for name in self._in_parts()}
        known = super()._broadcast(known) if known else known
        for name, is_known in known.items():
            # The root has it, or each rank has its part, as at first.
            self.__dict__[name] = self._whole_of(name) if is_known else self._joined(name)
        super().sync()

    def _prepare(self) -> None:
        super()._prepare()
        for name in self._in_parts():
            self._wholes[name] = (Leaves(getattr(self, name)), _kept_copy(self._joined(name)))

    def _in_parts(self) -> list[str]:
        return [name for name in self._plain() if is_divided(getattr(self, name))]

    def _kept(self, name: str) -> Any:
        whole = self._whole_of(name)
        return _host(self._saved[name]) if whole is None else whole

    def _joined(self, name: str) -> Any:
        """Return an attribute with whole states; collective, unless it was kept just so."""
        whole = self._whole_of(name)
        return join(getattr(self, name)) if whole is None else whole

    def _whole_of(self, name: str) -> Any:
        """Return an attribute with whole states if they are known here; None otherwise."""
        value = getattr(self, name)
        if holds_whole(value):
            return value
        leaves, whole = self._wholes.get(name, (None, None))
        return whole if leaves is not None and leaves.are_those_of(value) else None

    def _divide(self) -> None:
        """Give this rank its parts of what is whole."""
        wholes = {name: self._whole_of(name) for name in self._in_parts()}
        self._wholes = {}
        for name, whole in wholes.items():
            if whole is None or self._division is None:
                continue
            if not is_divided_as(getattr(self, name), self._division):
                self.__dict__[name] = divide(_device(whole), self._division)
            self._wholes[name] = (Leaves(getattr(self, name)), _kept_copy(whole))

    def _load(self, path: str, snapshot: Snapshot) -> None:
        super()._load(path, snapshot)
        self._to_device()

    def _broadcast(self, obj: Any, root: int | None = None) -> Any:
        return _device(super()._broadcast(_host(obj), root))

    def _to_device(self) -> None:
        for name in self._plain():
            self.__dict__[name] = _device(getattr(self, name))


class Leaves:
    """The leaves of a tree, by which it is known again: programs replace parts of it in place.

    Args:
        tree: its arrays of JAX do not change; of those of NumPy, copies are kept.
    """

    def __init__(self, tree: Any) -> None:
        leaves, self._structure = jax.tree.flatten(tree)
        self._leaves = [np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]

    def are_those_of(self, tree: Any) -> bool:
        """Return whether a tree has the same leaves in the same places."""
        leaves, structure = jax.tree.flatten(tree)
        return structure == self._structure and all(map(_is_same, self._leaves, leaves))


def _is_same(known: Any, leaf: Any) -> bool:
    if not isinstance(leaf, np.ndarray) or not isinstance(known, np.ndarray):
        return known is leaf
    same_kind = (known.dtype, known.shape) == (leaf.dtype, leaf.shape)
    return same_kind and known.tobytes() == leaf.tobytes()


def _kept_copy(tree: Any) -> Any:
    """Return a copy in host memory: programs may donate arrays, and change those of NumPy."""
    return copy_of(_host(tree))


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
