"""The rules for differentiating and batching the collectives.

Cotangents are those of the sum of all ranks' losses: the rules are the exact adjoints, so forward,
reverse and second derivatives agree with each other.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching

from horovod import _native
from horovod._rank.reduction import ReduceOp
from horovod.jax.primitives import PRIMITIVES, bind

if TYPE_CHECKING:
    from horovod.jax.collective import Collective

_LINEAR = (ReduceOp.SUM, ReduceOp.AVERAGE)


def _divided(operands: Any, collective: Collective) -> tuple[list[Any], Any]:
    """The arrays, and the weight or None."""
    if collective.weighted:
        return list(operands[:-1]), operands[-1]
    return list(operands), None


def _jvp(
    kind: str, primals: Any, tangents: Any, *, collective: Collective
) -> tuple[list[Any], list[Any]]:
    if collective.num_residuals:
        raise NotImplementedError("a reduction with error feedback has no derivative")
    arrays, weight = _divided(primals, collective)
    results = bind(arrays, collective, weight)
    if collective.op not in _LINEAR:
        raise NotImplementedError(
            f"{kind} with op={collective.op.name} has no derivative; use Sum or Average, or "
            "jax.lax.stop_gradient"
        )
    # Alike on all ranks, whichever tangents are zero there.
    moved = [i for i, array in enumerate(arrays) if jnp.issubdtype(array.dtype, jnp.inexact)]
    rows = tuple(collective.rows[i] for i in moved) if collective.rows else ()
    moving = collective.but(name=f"{collective.name}.tangent", rows=rows)
    given = [ad.instantiate_zeros(tangents[i]) for i in moved]
    found = dict(zip(moved, bind(given, moving, weight) if given else [], strict=True))
    nothing = [ad.Zero(result.aval.to_tangent_aval()) for result in results]
    return results, [found.get(i, nothing[i]) for i in range(len(results))]


def _transpose(kind: str, cotangents: Any, *operands: Any, collective: Collective) -> list[Any]:
    arrays, weight = _divided(operands, collective)
    given = [ad.instantiate_zeros(each) for each in cotangents]
    back = collective.but(name=f"{collective.name}.gradient")
    shapes = [(each.aval if ad.is_undefined_primal(each) else each).shape for each in arrays]
    found = _ADJOINTS[kind](given, shapes, back, weight)
    results = [
        cotangent if ad.is_undefined_primal(array) else None
        for array, cotangent in zip(arrays, found, strict=True)
    ]
    return [*results, None] if collective.weighted else results


def _of_allreduce(given: Any, shapes: Any, back: Collective, weight: Any) -> list[Any]:
    return bind(given, back, weight)


def _of_broadcast(given: Any, shapes: Any, back: Collective, weight: Any) -> list[Any]:
    sums = bind(given, back.but(kind="allreduce"))
    # Where it is zero, too, the sum has to look used: JAX would drop it from the program.
    is_root = jnp.asarray(back.rank == back.root_place)
    return [jnp.where(is_root, each, jnp.zeros_like(each)) for each in sums]


def _of_allgather(given: Any, shapes: Any, back: Collective, weight: Any) -> list[Any]:
    if not back.rows:
        return bind(given, back.but(kind="reducescatter"))
    sums = bind(given, back.but(kind="allreduce", rows=()))
    starts = [sum(rows[: back.rank]) for rows in back.rows]
    return [
        lax.slice_in_dim(each, start, start + rows[back.rank])
        for each, start, rows in zip(sums, starts, back.rows, strict=True)
    ]


def _of_alltoall(given: Any, shapes: Any, back: Collective, weight: Any) -> list[Any]:
    if not back.table:
        return bind(given, back)
    table = tuple(zip(*back.table, strict=True))
    (sent,) = bind(given, back.but(table=table))
    rest = shapes[0][0] - sent.shape[0]  # rows that went nowhere
    return [jnp.pad(sent, [(0, rest), *[(0, 0)] * (sent.ndim - 1)])]


def _of_reducescatter(given: Any, shapes: Any, back: Collective, weight: Any) -> list[Any]:
    factor = back.prescale * back.postscale
    if back.op is ReduceOp.AVERAGE:
        factor /= back.size
    rows = tuple(
        tuple(_native.share_of(shape[0], rank, back.size) for rank in range(back.size))
        for shape in shapes
    )
    gathering = back.but(
        kind="allgather", op=ReduceOp.SUM, prescale=1.0, postscale=1.0, rows=rows
    )  # fmt: skip
    scaled = given if factor == 1.0 else [each * jnp.asarray(factor, each.dtype) for each in given]
    return bind(scaled, gathering)


_ADJOINTS = {
    "allreduce": _of_allreduce,
    "allgather": _of_allgather,
    "broadcast": _of_broadcast,
    "alltoall": _of_alltoall,
    "reducescatter": _of_reducescatter,
}


def _batch(kind: str, operands: Any, dims: Any, *, collective: Collective) -> tuple[Any, Any]:
    """One collective for the whole batch, whose size the ranks must agree on."""
    arrays, weight = _divided(operands, collective)
    if collective.weighted and dims[-1] is not None:
        raise NotImplementedError(f"{kind}: the weight is of a rank, and cannot be mapped by vmap")
    places = list(dims[: len(arrays)])
    if kind not in ("allreduce", "broadcast"):
        arrays = [
            array if place is None else jnp.moveaxis(array, place, 1)
            for array, place in zip(arrays, places, strict=True)
        ]
        places = [place if place is None else 1 for place in places]
    return bind(arrays, collective, weight), places


for _kind, _primitive in PRIMITIVES.items():
    ad.primitive_jvps[_primitive] = functools.partial(_jvp, _kind)
    ad.primitive_transposes[_primitive] = functools.partial(_transpose, _kind)
    batching.primitive_batchers[_primitive] = functools.partial(_batch, _kind)
