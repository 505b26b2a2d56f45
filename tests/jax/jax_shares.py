"""An optimizer whose state is divided among the ranks leaves what a whole one leaves.

A case is a function ``case(rank, size)`` that runs on every rank at the same time, in float64.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import horovod.jax as hvd
from horovod._train.division import Division
from horovod.errors import UsageError
from horovod.jax.shares.state import Layout, part_of

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 4
TOLERANCE = 1e-9
SHAPES = {"table": (7, 3), "deep": {"bias": (5,)}, "one": (1,), "scale": (), "nothing": (0, 4)}
LABELS = {"table": "adam", "deep": "sgd", "one": "frozen", "scale": "adam", "nothing": "sgd"}

# What each needs: nothing but elements, shapes, labels, norms of one and of all arrays, branches.
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "clipped, scheduled, by shapes": lambda: optax.chain(
        optax.clip_by_global_norm(0.1),
        optax.adamw(
            optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 5),
            mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params),
        ),
    ),
    "noisy, clipped by blocks": lambda: optax.chain(
        optax.add_noise(0.01, 0.5, 3), optax.clip_by_block_rms(0.05), optax.lion(0.01)
    ),
    "lamb": lambda: optax.lamb(0.05, weight_decay=0.1),
    "small adafactor": lambda: optax.adafactor(0.05, min_dim_size_to_factor=128),
    "labels": lambda: optax.multi_transform(
        {"adam": optax.adam(0.05), "sgd": optax.sgd(0.1, 0.9), "frozen": optax.set_to_zero()},
        LABELS,
    ),
    "only finite, injected": lambda: optax.apply_if_finite(
        optax.inject_hyperparams(optax.rmsprop)(learning_rate=0.05, momentum=0.5), 3
    ),
    "several steps": lambda: optax.MultiSteps(
        optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1, 0.9, nesterov=True)), 2
    ).gradient_transformation(),
    "plateau": lambda: optax.chain(
        optax.scale_by_trust_ratio(), optax.ema(0.9),
        optax.contrib.reduce_on_plateau(patience=1, cooldown=0),
    ),
}  # fmt: skip


def _tree(seed: int) -> Any:
    generator = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(generator.standard_normal(shape)), SHAPES,
        is_leaf=lambda node: isinstance(node, tuple),
    )  # fmt: skip


def _gradients(params: Any, step: int, rank: int) -> Any:
    noise = _tree(1000 + 10 * step + rank)
    return jax.tree.map(lambda p, n: jnp.tanh(p) + n, params, noise)


def _mean_gradients(params: Any, step: int, weights: Any) -> Any:
    each = [_gradients(params, step, rank) for rank in range(len(weights))]
    weights = np.asarray(weights, float) / np.sum(weights)
    return jax.tree.map(lambda *g: sum(w * x for w, x in zip(weights, g, strict=True)), *each)


def _expect_same(got: Any, expected: Any, what: str) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected), what
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True
    ):
        if jax.dtypes.issubdtype(b.dtype, jax.dtypes.extended):
            continue
        where = what + jax.tree_util.keystr(path)
        assert np.shape(a) == np.shape(b), where
        assert a.dtype == b.dtype, where
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE, err_msg=where)


def _alone(tx: Any, weights: Any, extra: dict[str, Any], scale: float = 1.0) -> tuple[Any, Any]:
    params = _tree(0)
    tx = optax.with_extra_args_support(tx)
    state = tx.init(params)
    step = jax.jit(lambda g, s, p: tx.update(jax.tree.map(lambda x: x * scale, g), s, p, **extra))
    for number in range(STEPS):
        updates, state = step(_mean_gradients(params, number, weights), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def _in_shares(tx: Any, rank: int, extra: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    params = _tree(0)
    tx = hvd.DistributedOptimizer(tx, shard_state=True, **options)
    state = tx.init(params)
    step = jax.jit(lambda g, s, p: tx.update(g, s, p, **extra), donate_argnums=(0, 1))
    for number in range(STEPS):
        updates, state = step(_gradients(params, number, rank), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def shares_equal_a_whole_state(rank: int, size: int) -> None:
    for name, make in OPTIMIZERS.items():
        extra = {"value": 1.0} if name == "plateau" else {}
        expected, whole = _alone(make(), [1] * size, extra)
        params, state = _in_shares(make(), rank, extra)
        assert isinstance(state, hvd.ShardedState)
        _expect_same(params, expected, name)
        _expect_same(hvd.gather_state(state), whole, f"{name}: state ")
        hvd.check_in_sync(params)


def a_rank_keeps_its_part(rank: int, size: int) -> None:
    params = {"w": jnp.ones((50, 4)), "b": jnp.ones(13)}
    state = hvd.DistributedOptimizer(optax.adam(0.1), shard_state=True).init(params)
    adam = state.inner_state[0]
    for moments in (adam.mu, adam.nu):
        assert moments["w"].shape == (200 // size + (rank < 200 % size),)
        assert moments["b"].shape == (13 // size + (rank < 13 % size),)
    assert adam.count.shape == ()


def options_of_shares_are_honored(rank: int, size: int) -> None:
    adam = lambda: optax.adam(0.05)  # noqa: E731
    expected, _ = _alone(adam(), [1] * size, {})
    for options in ({"groups": 2}, {"gradient_predivide_factor": 2.0}):
        params, _ = _in_shares(adam(), rank, {}, **options)
        _expect_same(params, expected, str(options))
    expected, _ = _alone(adam(), [1] * size, {}, scale=size)
    _expect_same(_in_shares(adam(), rank, {}, op=hvd.Sum)[0], expected, "sum")
    weights = [3.0 * each for each in range(1, size + 1)]
    expected, _ = _alone(adam(), weights, {})
    _expect_same(_in_shares(adam(), rank, {"weight": weights[rank]})[0], expected, "weight")
    text = _refusal_of(lambda: _in_shares(adam(), rank, {"weight": -1.0}))
    assert size == 1 or "weight" in text, text
    coarse, _ = _in_shares(optax.sgd(0.1), rank, {}, compression=hvd.Compression.fp16)
    expected, _ = _alone(optax.sgd(0.1), [1] * size, {})
    for a, b in zip(jax.tree.leaves(coarse), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-2)
    alone = hvd.add_process_set([0])
    expected, _ = _alone(adam(), [1], {})
    if rank == 0:
        _expect_same(_in_shares(adam(), rank, {}, process_set=alone)[0], expected, "one rank")
    hvd.barrier()


def passes_end_in_a_step_of_shares(rank: int, size: int) -> None:
    tx = hvd.DistributedOptimizer(
        optax.adam(0.1), shard_state=True, backward_passes_per_step=2,
        average_aggregated_gradients=True,
    )  # fmt: skip
    params = expected = _tree(0)
    state, plain = tx.init(params), optax.adam(0.1)
    whole = plain.init(params)
    for step in range(2):
        grads = [_gradients(params, 2 * step + i, rank) for i in range(2)]
        both = [_mean_gradients(expected, 2 * step + i, [1] * size) for i in range(2)]
        for each in grads:
            updates, state = jax.jit(tx.update)(each, state, params)
            params = optax.apply_updates(params, updates)
        mean = jax.tree.map(lambda a, b: (a + b) / 2, *both)
        updates, whole = plain.update(mean, whole, expected)
        expected = optax.apply_updates(expected, updates)
    _expect_same(params, expected, "passes")
    again = hvd.shard_state(hvd.gather_state(state), params)
    _expect_same(again, state, "passes, divided again")


def halves_keep_their_dtype(rank: int, size: int) -> None:
    params = {"w": jnp.ones((9, 3), jnp.bfloat16)}
    tx = hvd.DistributedOptimizer(
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)),
        shard_state=True,
    )
    state = tx.init(params)
    updates, state = tx.update({"w": params["w"] * (1 + rank)}, state, params)
    assert updates["w"].dtype == jnp.bfloat16
    assert updates["w"].shape == (9, 3)
    assert state.inner_state[1][0].mu["w"].dtype == jnp.bfloat16
    hvd.check_in_sync(updates)


def a_checkpoint_fits_any_number_of_ranks(rank: int, size: int) -> None:
    params, state = _in_shares(optax.adamw(0.05), rank, {})
    whole = hvd.gather_state({"opt": state, "epoch": 3}, root_rank=size - 1)
    assert (whole is None) == (rank != size - 1)
    whole = hvd.broadcast_object(whole, root_rank=size - 1)
    assert whole["epoch"] == 3
    _expect_same(hvd.shard_state(whole["opt"], params), state, "divided again")
    plain = optax.adamw(0.05)
    plain.update(params, whole["opt"], params)  # without Horovod
    for other in (1, 2, 3, 5):
        parts = [
            part_of(whole["opt"], Layout(Division(each, other), state.layout.shapes))
            for each in range(other)
        ]
        joined = jax.tree.map(
            lambda *leaves: np.concatenate(leaves) if leaves[0].ndim else leaves[0],
            *(part.inner_state for part in parts),
        )
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1) if leaf.ndim else leaf, whole["opt"])
        _expect_same(joined, flat, f"{other} ranks")


def _refusal_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except UsageError as error:
        return str(error)
    return ""


def what_shares_cannot_do_is_refused(rank: int, size: int) -> None:
    params = {"w": jnp.ones((130, 140)), "b": jnp.ones(3)}
    for tx, what in (
        (optax.adafactor(0.1), "reduce_sum"),
        (optax.adaptive_grad_clip(0.1), "reduce_sum"),
        (optax.centralize(), "reduce_sum"),
        (optax.contrib.muon(0.1), "for which a rank needs the elements"),
    ):
        sharded = hvd.DistributedOptimizer(tx, shard_state=True)
        text = _refusal_of(lambda tx=sharded: jax.jit(tx.update)(params, tx.init(params), params))
        assert what in text, text
        assert "optax" in text, text
        assert "leave shard_state out" in text, text
    tx = hvd.DistributedOptimizer(optax.adam(0.1), shard_state=True)
    state = tx.init(params)
    whole = hvd.gather_state(state)
    other = part_of(whole, Layout(Division(size, size + 1), state.layout.shapes))
    for call, expected in (
        (lambda: tx.update(params, whole, params), "not in shares"),
        (lambda: tx.update(params, other, params), f"the share of rank {size} of {size + 1}"),
        (lambda: hvd.broadcast_parameters({"o": state}), "['o'] is a share of"),
        (lambda: hvd.shard_state(state, params), "in shares already"),
        (lambda: hvd.DistributedOptimizer(
            optax.sgd(0.1), compression=hvd.Compression.int8, shard_state=True), "in 8 bits"),
        (lambda: tx.update({**params, "b": params["b"] * 1j}, state, params), "complex128"),
        (lambda: hvd.DistributedOptimizer(optax.sgd(1.0), shard_state=True, op=hvd.Adasum),
         "Adasum"),
        (lambda: hvd.DistributedOptimizer(optax.sgd(1.0), shard_state=True, groups={"w": 1}),
         "groups of labels"),
    ):  # fmt: skip
        text = _refusal_of(call)
        assert expected in text, (expected, text)
    hvd.check_in_sync((params, state))  # compares what is the same on all ranks


def a_commit_keeps_all_of_an_attribute_with_shares(rank: int, size: int) -> None:
    tx = hvd.DistributedOptimizer(optax.sgd(0.1, 0.9), shard_state=True)

    @partial(jax.jit, donate_argnums=0)
    def step(train: Any) -> Any:
        updates, opt_state = tx.update(train["params"], train["opt_state"], train["params"])
        return {"params": optax.apply_updates(train["params"], updates), "opt_state": opt_state}

    params = {"w": jnp.arange(7.0)}
    state = hvd.elastic.JaxState(train={"params": params, "opt_state": tx.init(params)})
    state.sync()
    wanted = []
    for _ in range(3):
        state.commit()
        wanted.append(jax.device_get(hvd.gather_state(state.train)))
        state.train.update(step(state.train))  # in place; the arrays of before are gone
    state.restore()
    state.reset()
    jax.tree.map(np.testing.assert_array_equal, hvd.gather_state(state.train), wanted[-1])
    assert not np.array_equal(wanted[-1]["params"]["w"], wanted[-2]["params"]["w"])
    step(state.train)
    state.restore()  # also where no commit came between
    state.reset()
    jax.tree.map(np.testing.assert_array_equal, hvd.gather_state(state.train), wanted[-1])


CASES: tuple[Callable[[int, int], None], ...] = (
    shares_equal_a_whole_state,
    a_rank_keeps_its_part,
    options_of_shares_are_honored,
    passes_end_in_a_step_of_shares,
    halves_keep_their_dtype,
    a_checkpoint_fits_any_number_of_ranks,
    a_commit_keeps_all_of_an_attribute_with_shares,
    what_shares_cannot_do_is_refused,
)
