"""From the arguments of public functions to collectives on the leaves of a tree."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core  # which trace is the current one is told nowhere else
from jax._src.interpreters import partial_eval

from horovod import _native, context
from horovod._native import Buffer
from horovod.errors import MismatchError, UsageError
from horovod.jax.collective import Collective
from horovod.jax.errors import in_our_words
from horovod.jax.primitives import bind
from horovod.train.call_site import call_site
from horovod.train.process_set import ProcessSet, group_of, number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.group import Group

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


def refuse_within_jit(function: str) -> None:
    """Raises UsageError while a program is traced: the function would run once, not each time."""
    if is_traced():
        raise UsageError(f"hvd.{function}() cannot be part of a jitted program; call it outside")


def leaves_of(tree: Any, function: str) -> tuple[list[Any], Any]:
    """The arrays of a tree, and its structure.

    Raises:
        UsageError: a leaf is no array or number, or of a dtype that cannot be sent.
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    return [_array(leaf, function, path) for path, leaf in pairs], structure


def _array(leaf: Any, function: str, path: Any) -> Any:
    where = jax.tree_util.keystr(path)
    what = f"{function}: the leaf {where}" if where else f"{function}: the argument"
    if not isinstance(leaf, (jax.Array, *_NUMBERS)):
        raise UsageError(f"{what} is a {type(leaf).__name__}, neither an array nor a number")
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        raise UsageError(f"{what} is a key of random numbers; give jax.random.key_data(key)")
    array = leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
    if array.dtype.name not in DTYPES:
        raise UsageError(
            f"{what} is of dtype {array.dtype.name}, which cannot be sent; cast it to one of "
            f"{', '.join(DTYPES)} (complex numbers: real and imaginary part)"
        )
    if not (isinstance(array, jax.core.Tracer) or array.is_fully_addressable):
        raise UsageError(
            f"{what} spans several processes of jax.distributed; give array.addressable_shards"
        )
    return array


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
    _native.check_name(chosen)
    if not chosen.isprintable() or "\0" in chosen:
        raise UsageError(f"the name {chosen!r} cannot be part of a program")
    collective = Collective(
        kind, chosen, site.encode("utf-8", "replace").decode(), context.current().number,
        number_of(process_set), group.size, rank, ordered=ordered, **more,
    )  # fmt: skip
    return collective, group


def run(arrays: list[Any], collective: Collective, weight: Any = None) -> list[Any]:
    """Binds the primitive; errors of what runs at once are Horovod's."""
    with in_our_words():
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
