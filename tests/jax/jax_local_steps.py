"""LocalSGD and DiLoCo beside the same algorithm computed for all ranks in one process.

A case is a function ``case(rank, size)`` that runs on every rank at the same time, in float64.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_cases import expect

import horovod.jax as hvd
from horovod._rank import context
from horovod.errors import ReplicasDivergedError, UsageError
from horovod.jax.errors import in_our_words

if TYPE_CHECKING:
    from collections.abc import Callable

TOLERANCE = 1e-6  # a schedule of optax computes in float32


def _params(seed: int = 7) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    sizes = {"bias": (4,), "hidden": (3, 4), "out": (4, 2), "scale": ()}
    return {name: jnp.asarray(generator.standard_normal(size)) for name, size in sizes.items()}


def _grads(params: Any, rank: int, step: int) -> Any:
    """Gradients of a batch that only this rank and step have."""
    x = np.random.default_rng((step, rank)).standard_normal((5, 3))

    def loss(p: Any) -> Any:
        return ((jnp.tanh(x @ p["hidden"] + p["bias"]) @ p["out"] * p["scale"]) ** 2).mean()

    return jax.grad(loss)(params)


def _inner() -> Any:
    return optax.sgd(optax.linear_schedule(0.1, 0.02, 10), momentum=0.9)


def _nesterov(parameters: list[Any], slopes: list[Any], momenta: list[Any]) -> list[Any]:
    """A step of the outer optimizer of the paper, in NumPy; ``momenta`` are overwritten."""
    stepped = []
    for i, (parameter, slope) in enumerate(zip(parameters, slopes, strict=True)):
        momenta[i] = 0.9 * momenta[i] + slope
        stepped.append(parameter - 0.7 * (slope + 0.9 * momenta[i]))
    return stepped


def _reference(ranks: int, steps: int, firsts: list[int], every: int, is_outer: bool) -> list[Any]:
    """The parameters of all ranks after some steps: what the papers say, in one process.

    Args:
        ranks: how many.
        steps: how many each takes.
        firsts: for each parameter in order, the step after which it is exchanged first.
        every: steps from then on.
        is_outer: whether there is the outer optimizer of the paper.
    """
    tx = _inner()
    local = [_params() for _ in range(ranks)]
    states = [tx.init(each) for each in local]
    names = sorted(local[0])
    outer = {name: np.asarray(local[0][name]) for name in names}
    momenta = {name: [np.zeros_like(outer[name])] for name in names}
    for step in range(1, steps + 1):
        for rank in range(ranks):
            grads = _grads(local[rank], rank, step)
            updates, states[rank] = tx.update(grads, states[rank], local[rank])
            local[rank] = optax.apply_updates(local[rank], updates)
        for name, first in zip(names, firsts, strict=True):
            if (step - first) % every:
                continue
            change = np.mean([np.asarray(each[name]) - outer[name] for each in local], axis=0)
            if is_outer:
                (outer[name],) = _nesterov([outer[name]], [-change], momenta[name])
            else:
                outer[name] = outer[name] + change
            for each in local:
                each[name] = jnp.asarray(outer[name])
    return local


def _trained(tx: Any, rank: int, steps: int, jitted: bool = True) -> tuple[Any, Any]:
    params = _params()
    state = tx.init(params)
    update = jax.jit(tx.update) if jitted else tx.update
    for step in range(1, steps + 1):
        updates, state = update(_grads(params, rank, step), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def _expect_same(got: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def _bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def local_steps_are_those_of_the_papers(rank: int, size: int) -> None:
    for jitted in (True, False):
        for is_outer in (False, True):
            wrap = hvd.DiLoCo if is_outer else hvd.LocalSGD
            params, state = _trained(wrap(_inner(), every=3), rank, 8, jitted)
            _expect_same(params, _reference(size, 8, [3] * 4, 3, is_outer)[rank])
            assert int(state.num_alone) == 2
            hvd.check_in_sync((state.outer, state.outer_state))


def fragments_take_turns(rank: int, size: int) -> None:
    # Of 4, 12, 8 and 1 numbers: two fragments, that begin after steps 2 and 4.
    params, _ = _trained(hvd.DiLoCo(_inner(), every=4, fragments=2), rank, 11)
    _expect_same(params, _reference(size, 11, [2, 2, 4, 4], 4, True)[rank])


def synchronize_makes_all_ranks_equal(rank: int, size: int) -> None:
    for wrap in (hvd.LocalSGD, hvd.DiLoCo):
        tx = wrap(_inner(), every=3)
        params, state = _trained(tx, rank, 5)
        expect(ReplicasDivergedError, "hidden", lambda params=params: hvd.check_in_sync(params))
        params, state = jax.jit(tx.synchronize)(params, state)
        hvd.check_in_sync((params, state.outer, state.outer_state))
        again, same = tx.synchronize(params, state)
        assert _bits((again, same)) == _bits((params, state))


def a_checkpoint_of_local_steps_goes_on_bit_by_bit(rank: int, size: int) -> None:
    tx = hvd.DiLoCo(_inner(), every=3)
    params, state = _trained(tx, rank, 4)
    saved = jax.tree.map(np.asarray, (params, state))

    def further(params: Any, state: Any, tx: Any) -> Any:
        update = jax.jit(tx.update)
        for step in range(5, 9):
            updates, state = update(_grads(params, rank, step), state, params)
            params = optax.apply_updates(params, updates)
        return tx.synchronize(params, state)

    again = further(*jax.tree.map(jnp.asarray, saved), hvd.DiLoCo(_inner(), every=3))
    assert _bits(again) == _bits(further(params, state, tx))


def local_steps_begin_with_the_same_parameters(rank: int, size: int) -> None:
    params = _params()
    params["out"] = params["out"] + 1e-12 * rank
    for jitted in (False, True):
        tx = hvd.LocalSGD(_inner(), every=3)
        update = jax.jit(tx.update) if jitted else tx.update
        state = tx.init(params)

        def step(update: Any = update, state: Any = state) -> Any:
            with in_our_words():
                return jax.block_until_ready(update(_grads(params, rank, 1), state, params))

        expect(ReplicasDivergedError, "before the first local step, 1 tensors", step)
        expect(ReplicasDivergedError, "['out']\" on rank 1", step)


def a_joined_rank_has_changed_nothing(rank: int, size: int) -> None:
    _, state = _trained(hvd.LocalSGD(optax.sgd(0.1), every=3), rank, 3 if rank else 6)
    hvd.join()
    middle = hvd.broadcast_parameters(state.outer, root_rank=size - 1)
    if rank == 0:
        local = middle
        for step in range(4, 7):
            slopes = _grads(local, rank, step)
            local = jax.tree.map(lambda p, g: p - 0.1 * g, local, slopes)
        expected = jax.tree.map(lambda o, p: o + (p - o) / size, middle, local)
        _expect_same(state.outer, expected)


def newcomers_take_the_outer_state(rank: int, size: int) -> None:
    tx = hvd.DiLoCo(_inner(), every=3)
    params, state = _trained(tx, rank, 6)
    if rank:  # as a rank that has just come
        params = _params(rank)
        state = tx.init(params)
    params, state = hvd.broadcast_parameters((params, state), root_rank=0)
    update = jax.jit(tx.update)
    for step in range(7, 10):
        updates, state = update(_grads(params, 0, step), state, params)
        params = optax.apply_updates(params, updates)
    hvd.check_in_sync((params, state))


def halves_have_outer_parameters_of_float32(rank: int, size: int) -> None:
    for dtype in (jnp.bfloat16, jnp.float16):
        params = jax.tree.map(lambda p, dtype=dtype: p.astype(dtype), _params())
        tx = hvd.LocalSGD(optax.sgd(0.1), every=2, compression=hvd.Compression.bf16)
        state = tx.init(params)
        update = jax.jit(tx.update)
        for step in range(1, 5):
            grads = jax.tree.map(lambda g, dtype=dtype: g.astype(dtype), _grads(params, rank, step))
            updates, state = update(grads, state, params)
            params = optax.apply_updates(params, updates)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(state.outer)} == {"float32"}
        assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {jnp.dtype(dtype).name}
        hvd.check_in_sync(params)


def hosts_may_take_local_steps(rank: int, size: int) -> None:
    host = hvd.add_process_set(range(size))
    params, _ = _trained(hvd.DistributedOptimizer(_inner(), process_set=host), rank, 4)
    inner = hvd.DistributedOptimizer(_inner(), process_set=host)
    again, _ = _trained(hvd.LocalSGD(inner, every=2), rank, 4)
    _expect_same(again, params)
    hvd.remove_process_set(host)


def outer_parameters_are_compared(rank: int, size: int) -> None:
    original = context.settings
    context.settings = lambda: dataclasses.replace(original(), check_in_sync_steps=2)
    try:
        tx = hvd.LocalSGD(_inner(), every=1)
        params, state = _trained(tx, rank, 3)
        drifted = jax.tree.map(lambda o: o + 1e-12 * rank, state.outer)
        state = state._replace(outer=drifted)

        def step() -> None:
            with in_our_words():  # the fourth exchange, and so the second comparison
                jax.block_until_ready(jax.jit(tx.update)(_grads(params, rank, 4), state, params))

        expect(ReplicasDivergedError, "outer parameter", step)
    finally:
        context.settings = original


def wrong_local_steps_are_refused(rank: int, size: int) -> None:
    expect(UsageError, "every=0", lambda: hvd.LocalSGD(_inner(), every=0))
    expect(UsageError, "delay=1: exchanges", lambda: hvd.DiLoCo(_inner(), every=4, delay=1))
    tx = hvd.DiLoCo(_inner(), every=4, fragments=3)
    expect(UsageError, "trains 1 parameters", lambda: tx.init({"a": jnp.ones(2)}))
    tx = hvd.LocalSGD(_inner(), every=4)
    expect(UsageError, "['n'] is int64", lambda: tx.init({"n": jnp.arange(2)}))
    state = tx.init(_params())
    expect(UsageError, "update(grads, state, params)", lambda: tx.update(_params(), state))
    int8 = hvd.Compression.int8
    expect(UsageError, "8 bits", lambda: hvd.LocalSGD(_inner(), every=4, compression=int8))


CASES: list[Callable[[int, int], None]] = [
    local_steps_are_those_of_the_papers,
    fragments_take_turns,
    synchronize_makes_all_ranks_equal,
    a_checkpoint_of_local_steps_goes_on_bit_by_bit,
    local_steps_begin_with_the_same_parameters,
    a_joined_rank_has_changed_nothing,
    newcomers_take_the_outer_state,
    halves_have_outer_parameters_of_float32,
    hosts_may_take_local_steps,
    outer_parameters_are_compared,
    wrong_local_steps_are_refused,
]
