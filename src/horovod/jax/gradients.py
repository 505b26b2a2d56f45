"""Gradients that are averaged over the ranks: alone, and by functions that compute them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from horovod._rank.reduction import ReduceOp
from horovod._train.compression import format_of
from horovod._train.gradients import split_list
from horovod._train.numbering import NameNumbers
from horovod._train.optimizer_options import checked_reduction, reduces
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.reduce_op import Average
from horovod.errors import UsageError
from horovod.jax.calls import Leaves, sendable
from horovod.jax.compression import Compression
from horovod.jax.ops import reduce_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Unpack

    from horovod._train.compression import CompressorLike
    from horovod.jax.interface_types import Groups, PyTree, Scalar

_numbers = NameNumbers()


class GradientOptions(TypedDict, total=False):
    """The arguments of :func:`reduce_gradients` that functions of gradients take, too."""

    op: int
    compression: CompressorLike
    gradient_predivide_factor: float
    groups: Groups
    weight: Scalar | Callable[..., Scalar] | None


def reduce_gradients(
    grads: PyTree,
    *,
    op: int = Average,
    compression: CompressorLike = Compression.none,
    gradient_predivide_factor: float = 1.0,
    groups: Groups = None,
    weight: Scalar | None = None,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> Any:
    """Reduces a tree of gradients over the ranks, inside or outside of jit.

    Every leaf is reduced: arrays and numbers of a floating-point type, and complex ones as pairs of
    them. Leaves of float0, JAX's type of gradients without values, stay; others are refused. With
    one rank, and on ranks outside of the process set, the gradients come back as they are, without
    communication.

    Args:
        grads: the same tree, shapes and dtypes on all ranks.
        op: Average, Sum or Adasum.
        compression: of what is sent.
        gradient_predivide_factor: an average divides by it before the sum, and by the rest after.
        groups: None for one operation; a number of operations; or a tree of labels, a prefix of
            ``grads``: equal labels go together. Several run from the last leaf to the first.
        weight: of this rank in the average, for example its number of samples.
        process_set: the ranks that take part.
        name: what the ranks agree on; None for file and line of the caller.

    Raises:
        UsageError: the arguments are wrong, or a leaf is no gradient; the message names it.
        HorovodInternalError, or JaxRuntimeError in a jitted program: the job failed.
    """
    reduction = checked_reduction(op, gradient_predivide_factor)
    paths = check_gradients(grads)
    leaves, structure = jax.tree.flatten(grads)
    moved = [i for i, leaf in enumerate(leaves) if not is_float0(leaf)]
    parts = parts_of(moved, structure, groups)
    if not reduces(group_of(process_set)):
        return grads
    for number, part in enumerate(parts):
        own = name if name is None or len(parts) == 1 else f"{name}.{number}"
        sent = [as_floats(leaves[i], paths[i]) for i in part]
        got = reduce_leaves(
            Leaves(sent, [paths[i] for i in part], jax.tree.structure(sent)), op=reduction,
            name=own, compression=compression, weight=weight,
            factors=(1.0 / gradient_predivide_factor, float(gradient_predivide_factor)),
            process_set=process_set,
        )  # fmt: skip
        for i, array in zip(part, got, strict=True):
            is_pair = jnp.iscomplexobj(leaves[i])
            leaves[i] = jax.lax.complex(array[0], array[1]) if is_pair else array
    return jax.tree.unflatten(structure, leaves)


def is_float0(leaf: object) -> bool:
    """Whether a leaf is the gradient of integers, which holds no values."""
    return bool(getattr(leaf, "dtype", None) == jax.dtypes.float0)


def check_gradients(grads: PyTree) -> list[str]:
    """Return the paths of the leaves of a tree of gradients.

    Raises:
        UsageError: a leaf is no gradient; the message names it.
    """
    pairs, _ = jax.tree_util.tree_flatten_with_path(grads)
    paths = [jax.tree_util.keystr(path) for path, _ in pairs]
    for (_, leaf), path in zip(pairs, paths, strict=True):
        is_array = isinstance(leaf, (jax.Array, np.ndarray, np.generic, float, complex))
        if is_float0(leaf) or (is_array and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)):
            continue
        kind = leaf.dtype.name if hasattr(leaf, "dtype") else type(leaf).__name__
        raise UsageError(
            f"the leaf {path or 'of the gradients'} is {kind}, which is no gradient: give "
            "floating-point or complex numbers, and leave out anything else, or put None there"
        )
    return paths


def as_floats(leaf: Any, path: str) -> Any:
    """Return a leaf as it is sent: complex numbers as two arrays of real ones."""
    if jnp.iscomplexobj(leaf):
        leaf = jnp.asarray(leaf)
        leaf = jnp.stack([leaf.real, leaf.imag])
    return sendable(leaf, f"reduce_gradients: the leaf {path}", keeps_numpy=False)


def value_and_grad(
    fun: Callable[..., PyTree],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    reduce_value: bool = False,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
    **options: Unpack[GradientOptions],
) -> Callable[..., Any]:
    """Wrap :func:`jax.value_and_grad` to return gradients of all ranks.

    Args:
        fun: of this rank's part of the batch; gives a scalar, and with ``has_aux`` more.
        argnums, has_aux: as in :func:`jax.value_and_grad`.
        reduce_value: whether the value becomes the average of the ranks, in the same operation.
        process_set: the ranks that take part.
        name: what the ranks agree on; None numbers the functions in the order in which they are
            made.
        options: of :func:`reduce_gradients`; and ``weight`` may be a function of the arguments.

    Raises:
        NotInitializedError: ``hvd.init()`` was not called.

    Example:
        >>> step = jax.jit(hvd.value_and_grad(loss, reduce_value=True))
        >>> value, grads = step(params, batch)
    """
    own = name or own_name("value_and_grad", process_set)
    op = checked_reduction(options.get("op", Average), options.get("gradient_predivide_factor", 1))
    if reduce_value and op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError("reduce_value needs op=Average or Sum")
    local = jax.value_and_grad(fun, argnums, has_aux)

    @functools.wraps(fun)
    def of_all_ranks(*args: Any, **kwargs: Any) -> Any:
        value, grads = local(*args, **kwargs)
        chosen: dict[str, Any] = dict(options)
        if callable(chosen.get("weight")):
            chosen["weight"] = chosen["weight"](*args, **kwargs)
        if not reduce_value:
            return value, reduce_gradients(grads, process_set=process_set, name=own, **chosen)
        scalar = value[0] if has_aux else value
        group = group_of(process_set)
        share = scalar / group.size if op is ReduceOp.SUM and reduces(group) else scalar
        scalar, grads = _reduce_both(share, grads, chosen, process_set, own)
        return ((scalar, value[1]) if has_aux else scalar), grads

    return of_all_ranks


def grad(
    fun: Callable[..., PyTree],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    **options: Unpack[GradientOptions],
) -> Callable[..., Any]:
    """Wrap :func:`jax.grad` to return gradients of all ranks; options as in
    :func:`value_and_grad`.
    """
    both = value_and_grad(fun, argnums, has_aux, **options)

    @functools.wraps(fun)
    def of_all_ranks(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return of_all_ranks


def own_name(kind: str, process_set: ProcessSet) -> str:
    """A name for what a script makes without one; the ranks make them in the same order."""
    return f"{kind}.{_numbers.number_for([kind], group_of(process_set))}"


class _OfGradients:
    """A compression that leaves the value alone, which is the one scalar that is marked."""

    def __init__(self, compression: Any, value: Any) -> None:
        self._compression = compression
        self._value = value

    def compress(self, tensor: Any) -> tuple[Any, Any]:
        if tensor is self._value:
            return tensor, self
        return self._compression.compress(tensor)  # type: ignore[no-any-return]

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is self else self._compression.decompress(tensor, ctx)


class _Both(NamedTuple):
    """A value and a gradient that are reduced together; messages name its leaves."""

    value: Any
    gradient: Any


def _reduce_both(
    value: Any, grads: Any, options: dict[str, Any], process_set: ProcessSet, name: str
) -> tuple[Any, Any]:
    given = options.get("compression", Compression.none)
    # A value alone in a block of 8 bits is its scale, and so as exact as float32.
    compression = given if format_of(given) else _OfGradients(given, value)
    groups = options.get("groups")
    if groups is not None and not isinstance(groups, int):
        groups = _Both("the value", groups)
    chosen = {**options, "compression": compression, "groups": groups}
    result: tuple[Any, Any] = reduce_gradients(
        _Both(value, grads), process_set=process_set, name=name, **chosen
    )
    return result


def parts_of(moved: list[int], structure: Any, groups: Any) -> list[list[int]]:
    """Return the places of the leaves of each operation, which run in this order.

    Raises:
        UsageError: the groups are no number, labels or None that fit to the tree.
    """
    if groups is None:
        return [moved] if moved else []
    if isinstance(groups, int):
        if groups < 1:
            raise UsageError(f"groups={groups} must be at least 1, None, or a tree of labels")
        return [part for part in split_list(moved[::-1], groups) if part]
    places = jax.tree.unflatten(structure, range(structure.num_leaves))
    labels: dict[int, Any] = {}
    try:
        jax.tree.map(
            lambda label, below: labels.update(dict.fromkeys(jax.tree.leaves(below), label)),
            groups, places,
        )  # fmt: skip
    except ValueError as error:
        raise UsageError(f"groups is no prefix of the tree of gradients: {error}") from error
    by_label: dict[Any, list[int]] = {}
    for i in moved[::-1]:
        by_label.setdefault(labels[i], []).append(i)
    return list(by_label.values())
