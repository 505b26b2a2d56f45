"""Ranks that are threads on two hosts: error feedback in optimizers of Keras on JAX and PyTorch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import horovod.keras as hvd
from horovod.testing import run_ranks

COUNT, STEPS = 700, 20


def values(rank: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return minus the gradient of a rank."""
    return np.random.default_rng(rank).standard_normal(COUNT).astype(np.float32)


EXACT = (values(0) + values(1)) / 2
# An error of a step in each of two roundings, of at most half a step of int8 for the values here.
CLOSE = 2 * np.abs(values(0)).max() / 127


def train(jits: bool, passes: int) -> Any:
    """Return what a variable has become, and how many variables are not saved with a model."""
    hvd.init()
    variable = keras.Variable(np.zeros(COUNT, np.float32))
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0), compression=hvd.Compression.int8,
        backward_passes_per_step=passes, average_aggregated_gradients=True,
    )  # fmt: skip
    optimizer.build([variable])
    own = keras.ops.convert_to_tensor(-values(hvd.rank()))
    saved: dict[str, Any] = {}
    optimizer.save_own_variables(saved)
    more = len(optimizer.variables) - len(saved)
    if jits:
        return in_jit(optimizer, own, variable, STEPS * passes), more
    for _ in range(STEPS * passes):
        optimizer.apply([own], [variable])
    return keras.ops.convert_to_numpy(variable.value), more


def in_jit(optimizer: Any, own: Any, variable: Any, count: int) -> Any:
    """Return what a variable becomes by jitted steps."""
    import jax

    @jax.jit
    def step(trained: Any, held: Any) -> Any:
        return optimizer.stateless_apply(held, [own], trained)

    state = [variable.value], [each.value for each in optimizer.variables]
    for _ in range(count):
        state = jax.block_until_ready(step(*state))
    return np.asarray(state[0][0])


def main() -> None:
    """Check all ways to step."""
    is_jax = keras.backend.backend() == "jax"
    for jits in (True, False) if is_jax else (False,):
        for passes in (1, 2):
            (first, more), (second, _) = run_ranks(2, train, jits, passes, hosts=[1, 1])
            assert np.array_equal(first, second)
            assert 0 < np.abs(first - STEPS * EXACT).max() < CLOSE, (jits, passes)
            assert more == (2 * passes if is_jax else 0)
    print("errors come with the next step")


if __name__ == "__main__":
    main()
