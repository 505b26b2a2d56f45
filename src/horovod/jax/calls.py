"""From the arguments of public functions to collectives on the leaves of a tree."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core  # which trace is the current one is told nowhere else
from jax._src.interpreters import partial_eval

from horovod import _native
from horovod._native import Buffer
from horovod._rank import context
from horovod._train.call_site import call_site
from horovod._train.process_set import ProcessSet, group_of, number_of
from horovod._train.structure import Structure
from horovod.errors import MismatchError, UsageError
from horovod.jax.collective import Collective
from horovod.jax.errors import in_our_words
from horovod.jax.host_copy import run_now
from horovod.jax.primitives import bind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._rank.group import Group
    from horovod.jax.interface_types import Arrays, PyTree, Scalar

F = TypeVar("F", bound="Callable[..., Any]")

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64",
)  # fmt: skip
"""What can be sent."""

_NUMBERS = (bool, int, float, np.generic, np.ndarray)


def is_traced() -> bool:
    """Whether a program is being traced by jit or the like, so that nothing runs now.

    Derivatives and vmap outside of jit run at once.
    """
    trace: Any = core.trace_ctx.trace
    while trace is not None:
        if isinstance(trace, partial_eval.DynamicJaxprTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def outside_of_jit(function: F) -> F:
    """Refuse calls while a program is traced: the function would run once, not each time."""

    @functools.wraps(function)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        if is_traced():
            raise UsageError(
                f"hvd.{function.__name__}() cannot be part of a jitted program; call it outside"
            )
        return function(*args, **kwargs)

    return cast("F", refusing)


class Leaves(NamedTuple):
    """The leaves of a tree.

    Attributes:
        arrays: of JAX, or of NumPy where JAX has no such dtype now.
        paths: where they are in the tree, in the same order.
        structure: of the tree.
        errors: of a reduction in 8 bits, none, or the error of each array, then whose they are.
    """

    arrays: list[Any]
    paths: list[str]
    structure: Any
    errors: tuple[Any, ...] = ()

    def tree_of(self, arrays: Arrays) -> Any:
        """The tree with other leaves."""
        return jax.tree.unflatten(self.structure, arrays)

    def description(self) -> tuple[bool, Structure | None]:
        """Whether it is more than a bare array, and what ranks then compare of it."""
        if jax.tree_util.treedef_is_leaf(self.structure):
            return False, None
        return True, Structure.of(self.paths, "leaves" if len(self.paths) > 1 else "leaf")


def leaves_of(tree: PyTree, function: str) -> Leaves:
    """Return the arrays of a tree, their paths, and its structure.

    Raises:
        UsageError: a leaf is no array or number, is of a dtype that cannot be sent, or has a value
            that JAX would cut.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = [jax.tree_util.keystr(path) for path, _ in pairs]
    runs_now = not is_traced() and not any(isinstance(leaf, jax.core.Tracer) for _, leaf in pairs)
    arrays = [
        sendable(leaf, f"{function}: the leaf {path}" if path else f"{function}: the argument",
                 keeps_numpy=runs_now)
        for (_, leaf), path in zip(pairs, paths, strict=True)
    ]  # fmt: skip
    return Leaves(arrays, paths, structure)


def sendable(leaf: object, what: str, keeps_numpy: bool) -> Any:
    """The array of a leaf.

    Args:
        leaf: anything.
        what: what messages call it.
        keeps_numpy: whether integers of 64 bits that JAX would cut to 32 stay an array of NumPy.

    Raises:
        UsageError: see :func:`leaves_of`.
    """
    if not isinstance(leaf, (jax.Array, *_NUMBERS)):
        raise UsageError(f"{what} is a {type(leaf).__name__}, neither an array nor a number")
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        raise UsageError(f"{what} is a key of random numbers; give jax.random.key_data(key)")
    array = leaf if isinstance(leaf, jax.Array) else _converted(leaf, what, keeps_numpy)
    if array.dtype.name not in DTYPES:
        raise UsageError(
            f"{what} is of dtype {array.dtype.name}, which cannot be sent; cast it to one of "
            f"{', '.join(DTYPES)} (complex numbers: real and imaginary part)"
        )
    if isinstance(array, jax.Array) and not (
        isinstance(array, jax.core.Tracer) or array.is_fully_addressable
    ):
        raise UsageError(
            f"{what} spans several processes of jax.distributed; give array.addressable_shards"
        )
    return array


def _converted(leaf: Any, what: str, keeps_numpy: bool) -> Any:
    """Return an array of JAX, or of NumPy if JAX would cut its integers."""
    known = np.asarray(leaf)
    if known.dtype.hasobject:
        raise UsageError(f"{what} is {leaf!r:.40}, which fits into no dtype that can be sent")
    if known.dtype.name not in ("int64", "uint64", "float64"):
        return jnp.asarray(leaf)
    kept = jax.dtypes.canonicalize_dtype(known.dtype)
    if kept == known.dtype:
        return jnp.asarray(leaf)
    is_numpy = isinstance(leaf, (np.generic, np.ndarray))
    if is_numpy and keeps_numpy and known.dtype.kind in "iu":
        return known
    with np.errstate(over="ignore"):
        cut = known.astype(kept)
    is_float = known.dtype.kind == "f"
    if not (np.isinf(cut) == np.isinf(known) if is_float else cut == known).all():
        raise UsageError(
            f"{what} has a value of {known.dtype.name} that JAX would cut to {kept.name}; set "
            "jax_enable_x64"
        )
    return jnp.asarray(leaf)


def collective_of(
    kind: str, process_set: ProcessSet, name: str | None, ordered: bool = True, **more: Any
) -> tuple[Collective, Group]:
    """The collective of a public function, whose caller is recorded, and its group.

    Raises:
        UsageError: ``process_set`` is none, is not registered, or is without this rank; the name
            cannot be sent.
    """
    group = group_of(process_set)
    rank = group.rank  # raises where this rank is no member
    site = call_site()
    chosen = os.path.basename(site) if name is None else name
    tree = more.get("tree")
    if tree is not None:
        site += f" with {tree.text}"
    _native.check_name(chosen)
    if not chosen.isprintable() or "\0" in chosen:
        raise UsageError(f"the name {chosen!r} cannot be part of a program")
    collective = Collective(
        kind, chosen, site.encode("utf-8", "replace").decode(), context.current().number,
        number_of(process_set), group.size, rank, ordered=ordered, **more,
    )  # fmt: skip
    return collective, group


def run(arrays: Arrays, collective: Collective, weight: Scalar | None = None) -> list[Any]:
    """Binds the primitive; errors of what runs at once are Horovod's."""
    with in_our_words():
        if any(isinstance(array, np.ndarray) for array in arrays):
            return run_now(arrays if weight is None else [*arrays, weight], collective)
        return bind(arrays, collective, weight)


def exchange(group: Group, numbers: Sequence[int], name: str, site: str) -> list[list[int]]:
    """Numbers of all ranks, by rank of the set; none of ranks that have joined.

    Raises:
        MismatchError: the ranks gave different counts of numbers.
    """
    own = (ctypes.c_int64 * (len(numbers) + 1))(group.rank, *numbers)
    view = Buffer(ctypes.addressof(own), "int64", (1, len(own)))
    handle = group.allgather((view,), name=name, waits_next=True, call_site=site, keep=own)
    handle.wait()
    (result,) = handle.results()
    values = (ctypes.c_int64 * int(np.prod(result.shape))).from_address(result.address)
    rows: Any = np.array(values).reshape(result.shape)
    if rows.shape[1] != len(own):
        raise MismatchError(f"{name}: the ranks gave different numbers of arrays")
    found: list[list[int]] = [[] for _ in range(group.size)]
    for row in rows.tolist():
        found[row[0]] = row[1:]
    return found
