"""The collectives of JAX's arrays, outside and inside of jit.

Common arguments:
    tree: an array or any tree of arrays and numbers, which is one operation: its leaves become
        ready, and fail, together. None in a tree stays. bool, integers of 8 to 64 bits, float16,
        bfloat16, float32 or float64. The ranks compare the paths of the leaves, their shapes and
        their dtypes. Without jax_enable_x64, int64 and uint64 of NumPy stay NumPy's outside of jit;
        a value that JAX would cut is refused elsewhere.
    name: what the ranks agree on; without one, the file and line of the caller.
    process_set: the ranks that take part.
    ordered: whether it runs between its neighbors of the same program, as it stands there.

Common errors:
    UsageError (a ValueError): the arguments are wrong; only this rank sees it.
    HorovodInternalError: the ranks disagree, a rank was lost, or Horovod was shut down. In a jitted
        program, and for whoever waits for a result later, it is a jax.errors.JaxRuntimeError with
        the same text; :func:`synchronize` turns it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod._rank.reduction import ReduceOp
from horovod._train.call_site import call_site
from horovod._train.compression import check_quantizes, compressed, format_of
from horovod._train.logged.call import catch_up_after_join, flush_before_join
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.reduce_op import Average, resolve_reduce_op
from horovod._train.weights import check_weight, check_weighting
from horovod.errors import UnsupportedError, UsageError
from horovod.jax.calls import (
    Leaves,
    collective_of,
    exchange,
    is_traced,
    leaves_of,
    outside_of_jit,
    run,
)
from horovod.jax.compression import Compression
from horovod.jax.errors import in_our_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._train.compression import CompressorLike
    from horovod.jax.interface_types import PyTree, Scalar

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "reducescatter",
    "synchronize",
]


def allreduce(
    tree: PyTree,
    *,
    op: int = Average,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    weight: Scalar | None = None,
    process_set: ProcessSet = global_process_set,
    ordered: bool = True,
) -> Any:
    """Reduces each array over all ranks.

    Args:
        tree: any shapes, the same on all ranks.
        op: Average, Sum, Min, Max, Product or Adasum. Sum and Average have derivatives.
        name: what the ranks agree on.
        compression: of floating-point arrays on the wire. Compression.int8, fp8 and fp8_e5m2 are
            for Average and Sum; they take effect between hosts, and what is rounded off is lost.
        prescale_factor: multiplied to the inputs.
        postscale_factor: multiplied to the results.
        weight: of this rank in an average, a number of at least 0 or a traced scalar; on all ranks
            or on none. It has no derivative.
        process_set: the ranks that take part.
        ordered: whether it keeps its place in the program.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Example:
        >>> hvd.allreduce({"w": jnp.ones(3)}, op=hvd.Sum)   # with 4 ranks
        {'w': Array([4., 4., 4.], dtype=float32)}
    """
    leaves = leaves_of(tree, "allreduce")
    return reduce_leaves(
        leaves, op=op, name=name, compression=compression, weight=weight, process_set=process_set,
        factors=(float(prescale_factor), float(postscale_factor)), ordered=ordered,
    )  # fmt: skip


def reduce_leaves(
    leaves: Leaves,
    *,
    op: int,
    name: str | None,
    compression: CompressorLike,
    factors: tuple[float, float],
    weight: Scalar | None,
    process_set: ProcessSet,
    ordered: bool = True,
) -> Any:
    """Run :func:`allreduce` with leaves that have been checked, and the two factors as a pair.

    Returns:
        The tree; of leaves with errors also these, as they are to be given the next time.
    """
    prescale, postscale = factors
    reduction = resolve_reduce_op(op)
    check_weighting(weight, reduction)
    check_quantizes(compression, reduction)
    _check_floats(leaves.arrays, reduction, weight)
    grouped, described = leaves.description()
    collective, _ = collective_of(
        "allreduce", process_set, name, ordered, op=reduction, prescale=prescale,
        postscale=postscale, weighted=weight is not None, grouped=grouped,
        tree=described, quantization=int(format_of(compression) or 0),
        num_residuals=max(len(leaves.errors) - 1, 0),
    )  # fmt: skip
    if not leaves.arrays:
        return leaves.tree_of([])
    sent = [compressed(compression, array) for array in leaves.arrays]
    arrays = [*leaves.errors, *(array for array, _ in sent)]
    got = run(arrays, collective, weight_operand(weight))
    errors, got = got[: collective.first], got[collective.first :]
    tree = leaves.tree_of(
        [compression.decompress(y, ctx) for y, (_, ctx) in zip(got, sent, strict=True)]
    )
    return (tree, errors) if errors else tree


def reducescatter(
    tree: PyTree,
    *,
    op: int = Average,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ordered: bool = True,
) -> Any:
    """Reduces each array and leaves an equal part of its rows on each rank, in rank order.

    Args:
        tree: at least one dimension. If the rows cannot be divided equally, the first ranks get one
            more.
        op: Sum or Average.

    The rest is as in :func:`allreduce`.
    """
    leaves = leaves_of(tree, "reducescatter")
    arrays = leaves.arrays
    reduction = resolve_reduce_op(op)
    if reduction not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise UnsupportedError(f"reducescatter supports Sum and Average only, not {reduction.name}")
    _check_rows(arrays, "reducescatter")
    grouped, described = leaves.description()
    collective, _ = collective_of(
        "reducescatter", process_set, name, ordered, op=reduction, prescale=float(prescale_factor),
        postscale=float(postscale_factor), grouped=grouped, tree=described,
    )  # fmt: skip
    if not arrays:
        return tree
    sent = [compression.compress(array) for array in arrays]
    got = run([array for array, _ in sent], collective)
    results = [compression.decompress(y, ctx) for y, (_, ctx) in zip(got, sent, strict=True)]
    return leaves.tree_of(results)


def allgather(
    tree: PyTree,
    *,
    name: str | None = None,
    sizes: Sequence[int] | None = None,
    process_set: ProcessSet = global_process_set,
    ordered: bool = True,
) -> Any:
    """Joins the rows of all ranks, in rank order.

    Outside of jit the numbers of rows may differ; they are exchanged first. Inside of it shapes are
    fixed: all ranks give as many rows, or ``sizes`` says how many; what arrives is checked.

    Args:
        tree: at least one dimension; all but the first are the same on all ranks.
        sizes: the rows that each rank gives, the same for each array of the tree.
    """
    leaves = leaves_of(tree, "allgather")
    arrays = leaves.arrays
    _check_rows(arrays, "allgather")
    grouped, described = leaves.description()
    collective, group = collective_of(
        "allgather", process_set, name, ordered, grouped=grouped, tree=described
    )
    if not arrays:
        return tree
    own = [array.shape[0] for array in arrays]
    if sizes is not None:
        rows = tuple(int(size) for size in sizes)
        if len(rows) != group.size or any(each != rows[group.rank] for each in own):
            raise UsageError(
                f"sizes={list(rows)} does not fit {group.size} ranks, of which this one "
                f"({group.rank}) gives {own} rows"
            )
        collective = collective.but(rows=(rows,) * len(arrays))
    elif not is_traced():
        everyones = exchange(group, own, f"{collective.name}.rows", collective.call_site)
        by_array = zip(*(theirs or [0] * len(own) for theirs in everyones), strict=True)
        collective = collective.but(rows=tuple(tuple(rows) for rows in by_array))
    return leaves.tree_of(run(arrays, collective))


def broadcast(
    tree: PyTree,
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ordered: bool = True,
) -> Any:
    """Returns the arrays of the root.

    Args:
        tree: any shapes, the same on all ranks; the values count on the root only.
        root_rank: a global rank of the process set.
    """
    leaves = leaves_of(tree, "broadcast")
    group = group_of(process_set)
    if root_rank not in group.ranks:
        raise UsageError(
            f"root_rank={root_rank} does not belong to the process set of ranks {list(group.ranks)}"
        )
    grouped, described = leaves.description()
    collective, _ = collective_of(
        "broadcast", process_set, name, ordered, root=int(root_rank),
        root_place=group.ranks.index(root_rank), grouped=grouped, tree=described,
    )  # fmt: skip
    if not leaves.arrays:
        return tree
    return leaves.tree_of(run(leaves.arrays, collective))


def alltoall(
    array: jax.typing.ArrayLike,
    splits: Sequence[int] | jax.typing.ArrayLike | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ordered: bool = True,
) -> Any:
    """Sends rows to each rank.

    Args:
        array: at least one dimension.
        splits: None divides the rows equally. Outside of jit, the rows for each rank, which may
            differ between ranks. Inside of it a table that all ranks give: ``splits[r][s]`` rows go
            from rank r to rank s.

    Returns:
        The rows received, in rank order; with ``splits`` a pair of them and int32 counts of the
        rows from each rank, or a NumPy array of int64 if a count does not fit.
    """
    arrays = leaves_of((array,), "alltoall").arrays
    _check_rows(arrays, "alltoall")
    collective, group = collective_of("alltoall", process_set, name, ordered)
    (num_rows, *_) = arrays[0].shape
    if splits is None:
        collective.rows_of_result(0, num_rows)  # raises
        if is_traced():
            return run(arrays, collective)[0]
    # Ranks may have joined, or give other numbers of rows.
    wanted = [num_rows // group.size] * group.size if splits is None else splits
    table = _table_of(wanted, num_rows, collective, group)
    (result,) = run(arrays, collective.but(table=table))
    if splits is None:
        return result
    received = [row[group.rank] for row in table]
    if max(received) > jnp.iinfo(jnp.int32).max:
        return result, np.asarray(received, np.int64)
    return result, jnp.asarray(received, jnp.int32)


def grouped_allreduce(arrays: Sequence[jax.typing.ArrayLike], **options: Any) -> list[Any]:
    """Reduces a list of arrays as one operation; options as in :func:`allreduce`."""
    return list(allreduce(_list_of(arrays), **options))


def grouped_allgather(arrays: Sequence[jax.typing.ArrayLike], **options: Any) -> list[Any]:
    """Joins the rows of a list of arrays as one operation; options as in :func:`allgather`."""
    return list(allgather(_list_of(arrays), **options))


def grouped_reducescatter(arrays: Sequence[jax.typing.ArrayLike], **options: Any) -> list[Any]:
    """Scatters a list of arrays as one operation; options as in :func:`reducescatter`."""
    return list(reducescatter(_list_of(arrays), **options))


@outside_of_jit
def barrier(*, process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks have reached it; not inside of jit."""
    group_of(process_set).barrier(call_site=call_site()).wait()


@outside_of_jit
def join(
    *,
    divide_by_initial_world_size: bool = True,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Waits until all ranks have no more data; until then this one adds nothing to reductions.

    Not inside of jit. No operation of this rank may be in flight: wait for results first.

    Args:
        divide_by_initial_world_size: whether averages go on dividing by the size of the set, or by
            the number of ranks that have not joined.
        process_set: the ranks that join.

    Returns:
        The global rank that came last.
    """
    flush_before_join()
    handle = group_of(process_set).join(
        divide_by_initial_world_size=divide_by_initial_world_size, call_site=call_site()
    )
    handle.wait()
    last_joined = handle.last_joined()
    if process_set is global_process_set:
        catch_up_after_join(last_joined)
    return last_joined


def synchronize(tree: PyTree) -> Any:
    """Waits for all arrays of a tree, and returns it.

    Raises:
        HorovodInternalError, UsageError: a collective failed that they depend on.
        jax.errors.JaxRuntimeError: something else did.
    """
    with in_our_words():
        return jax.block_until_ready(tree)


def _list_of(arrays: Sequence[Any]) -> list[Any]:
    if not isinstance(arrays, (list, tuple)):
        raise UsageError(f"a list of arrays is needed, not a {type(arrays).__name__}")
    return list(arrays)


def _check_rows(arrays: list[Any], function: str) -> None:
    if any(array.ndim == 0 for array in arrays):
        raise UsageError(f"{function} needs at least one dimension, but an array is a scalar")


def _check_floats(arrays: list[Any], op: ReduceOp, weight: Any) -> None:
    if op is not ReduceOp.ADASUM and weight is None:
        return
    if not all(jnp.issubdtype(array.dtype, jnp.floating) for array in arrays):
        what = "Adasum" if weight is None else "weight"
        raise UnsupportedError(f"{what} needs arrays of a floating type")


def weight_operand(weight: Any) -> Any:
    """Return a weight as programs take it; None for none.

    Raises:
        UsageError: it is a number that is no weight.
    """
    if weight is None:
        return None
    wide = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
    value = weight if isinstance(weight, jax.core.Tracer) else check_weight(weight)
    return jax.lax.stop_gradient(jnp.asarray(value, wide).reshape(()))


def _table_of(splits: Any, num_rows: int, collective: Any, group: Any) -> tuple[Any, ...]:
    if isinstance(splits, jax.core.Tracer):
        raise UsageError("alltoall: splits must be known when the program is traced")
    try:
        given = [int(split) for split in splits] if not is_traced() else None
        table = None if given is not None else [[int(each) for each in row] for row in splits]
    except TypeError as error:
        raise UsageError(
            "alltoall: splits is a list of integers, or within jit a table of them: the rows from "
            "each rank to each rank"
        ) from error
    own = given if given is not None else (table or [[]])[group.rank : group.rank + 1][0]
    if len(own) != group.size or min(own) < 0 or sum(own) > num_rows:
        raise UsageError(
            f"alltoall: splits={own} does not divide {num_rows} rows between {group.size} ranks"
        )
    if table is None:
        everyones = exchange(group, own, f"{collective.name}.splits", collective.call_site)
        table = [theirs or [0] * group.size for theirs in everyones]
    if len(table) != group.size or any(len(row) != group.size for row in table):
        raise UsageError(f"alltoall: splits must be {group.size} rows of {group.size} numbers")
    return tuple(tuple(row) for row in table)
