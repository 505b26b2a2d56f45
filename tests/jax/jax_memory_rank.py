"""One rank of test_jax_memory.py: prints the page faults of a step with 100 MB of gradients."""

from __future__ import annotations

import resource

import jax
import jax.numpy as jnp

import horovod.jax as hvd

WIDTH, LAYERS, STEPS = 2048, 6, 3


def loss(weights: list[jax.Array], values: jax.Array) -> jax.Array:
    """Return the loss of a network."""
    for weight in weights:
        values = jnp.tanh(values @ weight)
    return (values * values).mean()


hvd.init()
step = jax.jit(
    lambda weights, values: [
        weight - 1e-3 * gradient
        for weight, gradient in zip(weights, hvd.grad(loss)(weights, values), strict=True)
    ],
    donate_argnums=0,
)
weights = [jnp.full((WIDTH, WIDTH), 1e-3) for _ in range(LAYERS)]
values = jnp.ones((1, WIDTH))
for number in range(2 * STEPS):
    if number == STEPS:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    weights = jax.block_until_ready(step(weights, values))
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // STEPS)
