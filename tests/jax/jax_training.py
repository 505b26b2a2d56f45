"""Training on several ranks leaves the weights of one process with the joint batch.

A case is a function ``case(rank, size)`` that runs on every rank at the same time, in float64.
"""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax

import horovod.jax as hvd
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 20
ROWS = 8
TOLERANCE = 1e-9


def _batch(step: int, rank: int, rows: int = ROWS) -> tuple[Any, Any]:
    generator = np.random.default_rng((step, rank))
    return generator.standard_normal((rows, 5)), generator.standard_normal((rows, 3))


def _joint(step: int, rows: list[int]) -> tuple[Any, Any]:
    xs, ys = zip(*(_batch(step, rank, count) for rank, count in enumerate(rows)), strict=True)
    return np.concatenate(xs), np.concatenate(ys)


def _params() -> dict[str, Any]:
    generator = np.random.default_rng(7)
    sizes = {"hidden": (5, 8), "bias": (8,), "out": (8, 3)}
    return {name: jnp.asarray(generator.standard_normal(size)) for name, size in sizes.items()}


def _loss(params: Any, batch: tuple[Any, Any]) -> Any:
    x, y = batch
    return ((jnp.tanh(x @ params["hidden"] + params["bias"]) @ params["out"] - y) ** 2).mean()


def _expect_same(got: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def _alone(tx: Any, rows: list[int], steps: int = STEPS) -> Any:
    params = _params()
    state = tx.init(params)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        updates, state = tx.update(jax.grad(_loss)(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    for number in range(steps):
        params, state = step(params, state, _joint(number, rows))
    return params


def _inner() -> Any:
    return optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.01))


def an_optimizer_equals_one_process(rank: int, size: int) -> None:
    expected = _alone(_inner(), [ROWS] * size)
    for options in ({}, {"groups": 2}, {"groups": {"hidden": 1, "bias": 1, "out": "last"}},
                    {"gradient_predivide_factor": 2.0}):  # fmt: skip
        tx = hvd.DistributedOptimizer(_inner(), **options)
        params = hvd.broadcast_parameters(jax.tree.map(lambda p: p * (1 - rank), _params()))
        state = tx.init(params)
        assert jax.tree.structure(state) == jax.tree.structure(_inner().init(params))

        @jax.jit
        def step(params: Any, state: Any, batch: Any, tx: Any = tx) -> Any:
            updates, state = tx.update(jax.grad(_loss)(params, batch), state, params)
            return optax.apply_updates(params, updates), state

        for number in range(STEPS):
            params, state = step(params, state, _batch(number, rank))
        _expect_same(params, expected)
        hvd.check_in_sync((params, state))


def functions_of_all_ranks_equal_one_process(rank: int, size: int) -> None:
    rows = [ROWS - 2 * r for r in range(size)]  # they count as often as they have rows
    expected = _alone(optax.sgd(0.05, 0.9), rows)
    tx = optax.sgd(0.05, 0.9)
    weight = lambda params, batch: batch[0].shape[0]  # noqa: E731
    gradient = hvd.value_and_grad(_loss, reduce_value=True, weight=weight)
    params = _params()
    state = tx.init(params)
    for number in range(STEPS):
        value, grads = jax.jit(gradient)(params, _batch(number, rank, rows[rank]))
        np.testing.assert_allclose(value, _loss(params, _joint(number, rows)), rtol=TOLERANCE)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    _expect_same(params, expected)
    only = hvd.grad(lambda p, b: (_loss(p, b), 5), has_aux=True)(params, _batch(0, rank))
    assert only[1] == 5


def bfloat16_and_compression(rank: int, size: int) -> None:
    grads = {"a": jnp.full(5, 1.0 + rank, jnp.bfloat16), "b": jnp.ones(2)}
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        got = jax.jit(lambda g, c=compression: hvd.reduce_gradients(g, compression=c))(grads)
        assert [each.dtype.name for each in jax.tree.leaves(got)] == ["bfloat16", "float64"]
        np.testing.assert_array_equal(got["a"].astype(float), 1.0 + (size - 1) / 2)
    tx = hvd.DistributedOptimizer(optax.sgd(1.0), backward_passes_per_step=2)
    state = tx.init({"a": grads["a"]})
    assert state.accumulated["a"].dtype == jnp.float32
    for _ in range(2):
        updates, state = tx.update({"a": grads["a"]}, state)
    np.testing.assert_array_equal(updates["a"].astype(float), -2 * (1.0 + (size - 1) / 2))


def every_leaf_of_a_gradient_is_reduced(rank: int, size: int) -> None:
    params = {"c": jnp.array([1 + 2j, 3j]), "f": 0.5, "h": jnp.ones(2, jnp.bfloat16)}

    def loss(params: Any, x: Any) -> Any:
        return (jnp.abs(params["c"] * x) ** 2).sum() + params["f"] * x + params["h"].sum() * x

    gradients = [jax.grad(loss)(params, 1.0 + r) for r in range(size)]
    expected = jax.tree.map(lambda *each: sum(np.asarray(g, complex) for g in each) / size,
                            *gradients)  # fmt: skip
    reduced = hvd.reduce_gradients(gradients[rank], groups=2)
    for got in (reduced, jax.jit(hvd.grad(loss))(params, 1.0 + rank)):
        assert jax.tree.map(jnp.result_type, got) == jax.tree.map(jnp.result_type, params)
        _expect_same(got, expected)
    plain = hvd.reduce_gradients({"python": float(rank), "imaginary": 1j * rank})
    mean = (size - 1) / 2
    assert (float(plain["python"]), complex(plain["imaginary"])) == (mean, 1j * mean)
    for wrong, kind in ((jnp.arange(2), "int64"), ("text", "str"), (True, "bool"), (1, "int")):
        text = ""
        try:
            hvd.reduce_gradients({"w": jnp.ones(2), "odd": {"leaf": wrong}})
        except UsageError as error:
            text = str(error)
        assert f"['odd']['leaf'] is {kind}, which is no gradient" in text, text


def passes_outside_of_jit_compile_nothing_again(rank: int, size: int) -> None:
    tx = hvd.DistributedOptimizer(optax.sgd(1.0), backward_passes_per_step=2)
    grads = {"w": jnp.full(3, 1.0 + rank)}
    state = tx.init(grads)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    jax.jit(lambda x: x + 137)(1).block_until_ready()
    assert compiled, "what is counted has another name in this JAX"
    for step in range(3):
        for i in range(2):
            compiled.clear()
            updates, state = tx.update(grads, state)
            np.testing.assert_array_equal(updates["w"], -(size + 1.0) * i)
            assert not (step and compiled), compiled


def gradients_without_values_pass_several_passes(rank: int, size: int) -> None:
    params = {"w": jnp.ones(3), "n": jnp.arange(2)}
    grads = jax.grad(lambda p: (p["w"] * (1.0 + rank)).sum() + 0 * p["n"].sum(), allow_int=True)(
        params
    )
    inner = optax.masked(optax.sgd(1.0), {"w": True, "n": False})
    for passes in (1, 2):
        tx = hvd.DistributedOptimizer(inner, backward_passes_per_step=passes)
        state = tx.init(params)
        for _ in range(passes):
            updates, state = tx.update(grads, state, params)
        assert updates["n"].dtype == jax.dtypes.float0
        np.testing.assert_array_equal(updates["w"], -passes * (1.0 + (size - 1) / 2))


def copies_of_an_optimizer_reduce(rank: int, size: int) -> None:
    tx = hvd.DistributedOptimizer(optax.sgd(1.0))
    grads = {"w": jnp.full(1, float(rank))}
    for each in (copy.deepcopy(tx), copy.copy(tx), pickle.loads(cloudpickle.dumps(tx))):
        updates, _ = each.update(grads, each.init(grads))
        np.testing.assert_array_equal(updates["w"], -(size - 1) / 2)


def _normalized(x: Any, mean: Any, variance: Any, weights: Any) -> Any:
    return (((x - mean) * jax.lax.rsqrt(variance + 1e-5)) ** 3 * weights).sum()


def batch_statistics_equal_one_process(rank: int, size: int) -> None:
    """Also with parts of different sizes, and far from 0, where sums of squares lose digits."""
    rows = [3 + each for each in range(size)]
    generator = np.random.default_rng(5)
    whole = 1e4 + generator.standard_normal((sum(rows), 4, 6))
    weights = generator.standard_normal(whole.shape)
    mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))

    def loss_of_all(x: Any) -> Any:
        return _normalized(x, x.mean((0, 1)), x.var((0, 1)), weights)

    def loss_here(x: Any) -> Any:
        return _normalized(x, *hvd.batch_statistics(x), weights[mine])

    expected = jax.grad(loss_of_all)(jnp.asarray(whole))[mine]
    for function in (loss_here, jax.jit(loss_here)):
        total = hvd.allreduce(function(whole[mine]), op=hvd.Sum)
        np.testing.assert_allclose(total, loss_of_all(jnp.asarray(whole)), rtol=1e-9)
        np.testing.assert_allclose(jax.grad(function)(whole[mine]), expected, rtol=1e-9, atol=1e-9)
    mean, variance = hvd.batch_statistics(whole[mine], axis=0)
    np.testing.assert_allclose(mean, whole.mean(0), rtol=1e-12)
    np.testing.assert_allclose(variance, whole.var(0), rtol=1e-7)
    half = hvd.batch_statistics(jnp.asarray(whole[mine], jnp.bfloat16))[0]
    assert half.dtype == jnp.float32


CASES: tuple[Callable[[int, int], None], ...] = (
    an_optimizer_equals_one_process,
    functions_of_all_ranks_equal_one_process,
    every_leaf_of_a_gradient_is_reduced,
    passes_outside_of_jit_compile_nothing_again,
    gradients_without_values_pass_several_passes,
    copies_of_an_optimizer_reduce,
    bfloat16_and_compression,
    batch_statistics_equal_one_process,
)
