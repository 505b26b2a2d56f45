"""One rank of test_jax_memory.py: prints the page faults of a step with 100 MB of gradients.

It is the median of many steps: on a busy machine some find their free memory in pieces, and ask for
more, until there is enough of it.
"""

from __future__ import annotations

import resource
import statistics

import jax
import jax.numpy as jnp

import horovod.jax as hvd

WIDTH, LAYERS, STEPS = 2048, 6, 36


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
faults = []
for _ in range(STEPS):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    weights = jax.block_until_ready(step(weights, values))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(int(statistics.median(faults)))
