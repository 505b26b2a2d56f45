"""The derivatives of the collectives are those of one process that does the work of all ranks.

For each operation there is the same function of all ranks' inputs, in plain JAX. A case is a
function ``case(rank, size)`` that runs on every rank at the same time, in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

TOLERANCE = 1e-10
ROWS = 6  # for two and three ranks
WEIGHTS = (1.0, 2.5, 0.5)

Ranks = list[Any]


def _everyone(key: int, size: int, rows: int = ROWS) -> Ranks:
    generator = np.random.default_rng((key, size))
    return [jnp.asarray(generator.standard_normal((rows, 2))) for _ in range(size)]


def _sum(xs: Ranks) -> Ranks:
    return [sum(xs)] * len(xs)


def _mean(xs: Ranks) -> Ranks:
    return [sum(xs) / len(xs)] * len(xs)


def _gathered(xs: Ranks) -> Ranks:
    return [jnp.concatenate(xs)] * len(xs)


def _exchanged(xs: Ranks) -> Ranks:
    parts = [jnp.split(x, len(xs)) for x in xs]
    return [jnp.concatenate([part[r] for part in parts]) for r in range(len(xs))]


def _exchanged_by_table(xs: Ranks) -> Ranks:
    table = _table(len(xs))
    starts = np.cumsum([[0, *row] for row in table], axis=1)
    return [
        jnp.concatenate([x[s[r] : s[r] + row[r]] for x, s, row in zip(xs, starts, table)])  # noqa: B905
        for r in range(len(xs))
    ]


def _table(size: int) -> list[list[int]]:
    return [[(r + s) % 3 for s in range(size)] for r in range(size)]


def _scattered(xs: Ranks) -> Ranks:
    return list(jnp.array_split(sum(xs), len(xs)))


def _operations(rank: int, size: int) -> dict[str, tuple[Any, Any]]:
    weights = WEIGHTS[:size]
    return {
        "sum": (
            lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25),
            lambda xs: [0.5 * y for y in _sum(xs)],
        ),
        "average": (hvd.allreduce, _mean),
        "allgather": (hvd.allgather, _gathered),
        "allgather with sizes": (lambda x: hvd.allgather(x, sizes=[ROWS] * size), _gathered),
        "broadcast": (lambda x: hvd.broadcast(x, size - 1), lambda xs: [xs[-1]] * size),
        "alltoall": (hvd.alltoall, _exchanged),
        "reducescatter": (lambda x: hvd.reducescatter(x, op=hvd.Sum), _scattered),
        "scattered average": (
            lambda x: hvd.reducescatter(x[1:], postscale_factor=3.0),
            lambda xs: [3.0 / size * y for y in _scattered([x[1:] for x in xs])],
        ),
        "weighted, for this rank": (
            lambda x: hvd.allreduce(x, weight=weights[rank]),
            lambda xs: [sum(w * x for w, x in zip(weights, xs, strict=True)) / sum(weights)] * size,
        ),
    }


def _cotangents(reference: Any, xs: Ranks, cs: Ranks) -> Ranks:
    def loss(xs: Ranks) -> Any:
        return sum((c * y).sum() for c, y in zip(cs, reference(xs), strict=True))

    return jax.grad(loss)(xs)  # type: ignore[no-any-return]


def _near(got: Any, expected: Any, what: str, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, err_msg=what)


def every_operation_has_its_tangent_and_its_adjoint(rank: int, size: int) -> None:
    xs, ts = _everyone(1, size), _everyone(2, size)
    for name, (function, reference) in _operations(rank, size).items():
        ys = reference(xs)
        cs = [jnp.asarray(np.random.default_rng(r).standard_normal(y.shape)) for r, y in
              enumerate(ys)]  # fmt: skip
        _, tangents = jax.jvp(reference, (xs,), (ts,))
        expected = _cotangents(reference, xs, cs)
        if name.startswith("weighted"):  # the loss is the weighted mean of the ranks' losses
            total = sum(WEIGHTS[:size])
            expected = [sum(w * c for w, c in zip(WEIGHTS, cs, strict=False)) / total] * size

        def both(x: Any, t: Any, c: Any, function: Any = function) -> Any:
            y, tangent = jax.jvp(function, (x,), (t,))
            return y, tangent, jax.vjp(function, x)[1](c)[0]

        for run in (both, jax.jit(both)):
            y, tangent, cotangent = run(xs[rank], ts[rank], cs[rank])
            _near(y, ys[rank], name)
            _near(tangent, tangents[rank], f"tangent of {name}")
            _near(cotangent, expected[rank], f"cotangent of {name}")


def tangents_are_those_of_finite_differences(rank: int, size: int) -> None:
    x, t = _everyone(3, size)[rank], _everyone(4, size)[rank]
    step = 1e-6
    for name, (function, _) in _operations(rank, size).items():
        difference = (function(x + step * t) - function(x - step * t)) / (2 * step)
        _near(jax.jvp(function, (x,), (t,))[1], difference, name, 1e-7)


def uneven_parts_have_their_adjoints(rank: int, size: int) -> None:
    xs = [x[: 1 + 2 * r] for r, x in enumerate(_everyone(5, size))]
    cs = _everyone(6, size, sum(len(x) for x in xs))
    got = jax.vjp(hvd.allgather, xs[rank])[1](cs[rank])[0]
    _near(got, _cotangents(_gathered, xs, cs)[rank], "allgather")
    sizes = [len(x) for x in xs]
    inside = jax.jit(lambda x, c: jax.vjp(lambda x: hvd.allgather(x, sizes=sizes), x)[1](c)[0])
    _near(inside(xs[rank], cs[rank]), got, "allgather within jit")
    xs, table = _everyone(7, size), _table(size)
    cs = [jnp.ones(y.shape) * (1 + r) for r, y in enumerate(_exchanged_by_table(xs))]
    expected = _cotangents(_exchanged_by_table, xs, cs)[rank]
    for splits, wrap in ((table[rank], lambda f: f), (table, jax.jit)):
        run = wrap(lambda x, c, s=splits: jax.vjp(lambda x: hvd.alltoall(x, s)[0], x)[1](c)[0])
        _near(run(xs[rank], cs[rank]), expected, "alltoall")


def second_derivatives_and_programs_of_all_kinds(rank: int, size: int) -> None:
    x = _everyone(8, size)[0][0]  # the same on all ranks

    def total(x: Any) -> Any:
        return (hvd.allreduce(x, op=hvd.Sum) ** 3).sum() / size

    expected = np.diag(6.0 * size**2 * x)
    _near(jax.hessian(total)(x), expected, "second derivative")
    _near(jax.jit(jax.hessian(total))(x), expected, "second derivative within jit")

    def steps(x: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            return hvd.allreduce(carry * x), None

        return jax.lax.scan(body, x, None, length=3)[0].sum()

    _near(jax.jit(jax.grad(steps))(x), 4 * x**3, "scan")
    _near(jax.grad(jax.checkpoint(steps))(x), 4 * x**3, "checkpoint")

    def repeated(x: Any) -> Any:
        return jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, hvd.allreduce(c[1], op=hvd.Sum)), (0, x)
        )[1]

    _near(jax.jit(repeated)(x), x * size**3, "while")
    branch = jax.jit(lambda b, x: jax.lax.cond(b, lambda x: hvd.allreduce(2 * x), lambda x: x, x))
    _near(branch(True, x), 2 * x, "cond")
    _near(branch(False, x), x, "cond")


def a_function_with_derivatives_of_its_own_communicates(rank: int, size: int) -> None:
    """Forward and backward, each with a collective."""

    @jax.custom_vjp
    def total(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    total.defvjp(lambda x: (total(x), x), lambda x, c: (c * hvd.allreduce(x, op=hvd.Sum),))
    x = _everyone(10, size)[0]  # the same on all ranks
    for run in (total, jax.jit(total)):
        _near(run(x), size * x, "custom_vjp")
        _near(jax.grad(lambda x, f=run: (f(x) ** 2).sum())(x), 2 * size**2 * x**2, "its gradient")


def programs_over_one_device_communicate(rank: int, size: int) -> None:
    """A mesh of the one device that a rank has."""
    spec = jax.sharding.PartitionSpec("d")
    mesh = jax.sharding.Mesh(jax.devices()[:1], "d")
    total = jax.shard_map(
        lambda x: jax.lax.psum(hvd.allreduce(x, op=hvd.Sum), "d"),
        mesh=mesh, in_specs=spec, out_specs=jax.sharding.PartitionSpec(),
    )  # fmt: skip
    x = _everyone(11, size)[0]
    for run in (total, jax.jit(total)):
        _near(run(x), size * x, "shard_map")


def a_batch_is_one_operation(rank: int, size: int) -> None:
    x = _everyone(9, size, ROWS * 3)[rank].reshape(3, ROWS, 2)
    for name, (function, _) in _operations(rank, size).items():
        expected = jnp.stack([function(each) for each in x])
        _near(jax.vmap(function)(x), expected, name)
        last = jax.jit(jax.vmap(function, in_axes=2, out_axes=1))(jnp.moveaxis(x, 0, 2))
        _near(last, jnp.moveaxis(expected, 0, 1), name)
    tree = jax.vmap(lambda a, b: hvd.allreduce((a, b), op=hvd.Sum), (0, None), (0, None))
    sums, alone = tree(jnp.ones((3, 2)), jnp.ones(4))
    _near(sums, size * np.ones((3, 2)), "mapped")
    _near(alone, size * np.ones(4), "not mapped")


def integers_in_a_tree_have_no_derivative(rank: int, size: int) -> None:
    def loss(x: Any) -> Any:
        got = hvd.allreduce({"count": jnp.arange(3), "x": x}, op=hvd.Sum)
        return (got["x"] * got["count"].sum()).sum()

    _near(jax.grad(loss)(jnp.ones(2)), np.full(2, 3.0 * size * size), "tree")
    for op in (hvd.Max, hvd.Min, hvd.Product, hvd.Adasum):
        refused = ""
        try:
            jax.grad(lambda x, op=op: hvd.allreduce(x, op=op).sum())(jnp.ones(2))
        except NotImplementedError as error:
            refused = str(error)
        assert "has no derivative" in refused


CASES: tuple[Callable[[int, int], None], ...] = (
    every_operation_has_its_tangent_and_its_adjoint,
    tangents_are_those_of_finite_differences,
    uneven_parts_have_their_adjoints,
    second_derivatives_and_programs_of_all_kinds,
    a_function_with_derivatives_of_its_own_communicates,
    programs_over_one_device_communicate,
    a_batch_is_one_operation,
    integers_in_a_tree_have_no_derivative,
)
