"""Ranks that are threads on two hosts: what 8 bits round off comes with the next step."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_copied import copy_all_arrays

import horovod.jax as hvd
from horovod.errors import UsageError
from horovod.testing import run_ranks

COUNT, STEPS = 700, 20
HOSTS = [1, 1]


def gradients(rank: int) -> dict[str, Any]:
    """Return what a rank gives in each step."""
    values = np.random.default_rng(rank).standard_normal(COUNT).astype(np.float32)
    return {"w": jnp.asarray(values), "b": jnp.asarray(values[:5] + 1j * values[5:10])}


def mean(key: str) -> Any:
    """Return the exact average."""
    return (np.asarray(gradients(0)[key]) + np.asarray(gradients(1)[key])) / 2


def train(passes: int, groups: int | None, jits: bool) -> Any:
    """Return the parameters, the errors, and whose they are."""
    hvd.init()
    params = jax.tree.map(jnp.zeros_like, gradients(0))
    tx = hvd.DistributedOptimizer(
        optax.sgd(1.0), compression=hvd.Compression.int8, groups=groups,
        backward_passes_per_step=passes, average_aggregated_gradients=True,
    )  # fmt: skip
    state = tx.init(params)
    own = gradients(hvd.rank())
    update = jax.jit(tx.update) if jits else tx.update
    for _ in range(STEPS * passes):
        updates, state = update(own, state, params)
        # Steps of several ranks in one process would wait for each other in XLA's queue.
        params = jax.block_until_ready(optax.apply_updates(params, updates))
    hvd.check_in_sync(state)
    errors = (state.inner_state if passes > 1 else state).errors
    return jax.tree.map(np.asarray, params), jax.tree.map(np.asarray, errors)


def errors_make_up_for_the_rounding() -> None:
    """What has been applied, and what is kept, is what the ranks have given."""
    for options in ((1, None, True), (2, None, True), (1, 2, True), (1, None, False)):
        (first, own), (second, theirs) = run_ranks(2, train, *options, hosts=HOSTS)
        assert (own.kept_by, theirs.kept_by) == (0, 1)
        for key in ("w", "b"):
            assert np.array_equal(first[key], second[key])
            kept = (own.values[key] + theirs.values[key]) / 2
            kept = kept[0] + 1j * kept[1] if key == "b" else kept
            assert np.abs(kept).max() > 0
            np.testing.assert_allclose(-first[key] + kept, STEPS * mean(key), rtol=1e-4, atol=1e-4)


def reduce_twice(broadcasts: bool) -> Any:
    """Return two averages, and the errors behind the first."""
    hvd.init()
    own = {"w": gradients(hvd.rank())["w"]}
    errors = hvd.init_gradient_errors(own)
    reduce = jax.jit(
        lambda g, e: hvd.reduce_gradients_with_errors(g, e, compression=hvd.Compression.int8)
    )
    first, errors = reduce(own, errors)
    kept = np.asarray(errors.values["w"])
    if broadcasts:
        errors = hvd.broadcast_parameters(errors)
    second, errors = reduce(own, errors)
    assert int(errors.kept_by) == hvd.rank()
    return np.asarray(first["w"]), np.asarray(second["w"]), kept, np.asarray(errors.values["w"])


def errors_of_one_rank_count_once() -> None:
    """After a broadcast, the errors of rank 0 are those of rank 0, and those of rank 1 are gone."""
    for broadcasts in (False, True):
        mine, theirs = run_ranks(2, reduce_twice, broadcasts, hosts=HOSTS)
        before = mine[2] if broadcasts else mine[2] + theirs[2]
        after = (mine[3] + theirs[3]) / 2
        np.testing.assert_allclose(mine[1] + after, mean("w") + before / 2, rtol=1e-4, atol=1e-4)


def reduce_infinity() -> Any:
    """Return the errors behind a gradient with an infinity."""
    hvd.init()
    own = {"w": gradients(hvd.rank())["w"].at[3].set(jnp.inf), "x": jnp.arange(600.0)}
    errors = hvd.init_gradient_errors(own)
    got, errors = hvd.reduce_gradients_with_errors(own, errors, compression=hvd.Compression.int8)
    assert np.isinf(got["w"][3])
    refusal = ""
    try:
        hvd.reduce_gradients_with_errors(own, errors)
    except UsageError as error:
        refusal = str(error)
    assert "int8" in refusal
    return [np.abs(each).max() for each in jax.tree.leaves(errors.values)]


def skipped_steps_leave_no_errors() -> None:
    """A step that every optimizer skips leaves nothing, in no gradient."""
    assert run_ranks(2, reduce_infinity, hosts=HOSTS) == [[0.0, 0.0]] * 2


CASES = (
    errors_make_up_for_the_rounding,
    errors_of_one_rank_count_once,
    skipped_steps_leave_no_errors,
)


if __name__ == "__main__":
    if sys.argv[1:] == ["copied"]:
        copy_all_arrays()
    for case in CASES:
        case()
        print(case.__name__)
