"""One rank of test_jax_modules.py: modules of flax and equinox, against one process.

Each trains a layer that normalizes by the statistics of the batches of all ranks, in float64, and
leaves what one process has after the same steps with the joint batch.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_programs import compile_once

import horovod.jax as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "jax.md"
STEPS = 10
TOLERANCE = 1e-9


def module_of_the_page() -> Any:
    """``BatchNorm``, as docs/jax.md has it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (text,) = (block for block in blocks if "class BatchNorm" in block)
    names = {"flax": flax, "hvd": hvd, "jax": jax, "jnp": jnp}
    exec(compile(text, str(PAGE), "exec"), names)
    return names["BatchNorm"]


def _batch(step: int, size: int) -> tuple[Any, Any]:
    """Of all ranks together: as many rows of each, far from 0."""
    generator = np.random.default_rng(step)
    return 3 + generator.standard_normal((6 * size, 5)), generator.standard_normal((6 * size, 2))


def _part(batch: tuple[Any, Any], rank: int) -> tuple[Any, Any]:
    x, y = batch
    return x[6 * rank : 6 * rank + 6], y[6 * rank : 6 * rank + 6]


def _near(got: Any, expected: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


class _Net(flax.linen.Module):
    norm: Callable[[Any, bool], Any]

    @flax.linen.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = flax.linen.Dense(8, param_dtype=jnp.float64)(x)
        x = flax.linen.relu(self.norm(x, train))
        return flax.linen.Dense(2, param_dtype=jnp.float64)(x)


def _of_one_process(x: Any, train: bool) -> Any:
    return flax.linen.BatchNorm(
        use_running_average=not train, momentum=0.9, param_dtype=jnp.float64,
        use_fast_variance=False, name="norm",
    )(x)  # fmt: skip


def _flax_trained(norm: Any, tx: Any, batch_of: Callable[[int], Any], size: int) -> Any:
    model = _Net(norm)
    variables = model.init(jax.random.key(0), _batch(0, size)[0], train=False)
    params = variables["params"]
    statistics = jax.tree.map(lambda a: a.astype(jnp.float64), variables["batch_stats"])
    state = tx.init(params)

    def loss(params: Any, statistics: Any, batch: Any) -> Any:
        given = {"params": params, "batch_stats": statistics}
        y, changed = model.apply(given, batch[0], train=True, mutable=["batch_stats"])
        return ((y - batch[1]) ** 2).mean(), changed["batch_stats"]

    @jax.jit
    def step(params: Any, statistics: Any, state: Any, batch: Any) -> Any:
        grads, statistics = jax.grad(loss, has_aux=True)(params, statistics, batch)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), statistics, state

    for number in range(STEPS):
        params, statistics, state = step(params, statistics, state, batch_of(number))
    x = _batch(STEPS, size)[0]
    y = model.apply({"params": params, "batch_stats": statistics}, x, train=False)
    return params, statistics, y


def a_module_of_flax_equals_one_process(rank: int, size: int) -> None:
    tx = optax.sgd(0.05, 0.9)
    module = module_of_the_page()
    got = _flax_trained(
        lambda x, train: module(name="norm")(x, train), hvd.DistributedOptimizer(tx),
        lambda step: _part(_batch(step, size), rank), size,
    )  # fmt: skip
    _near(got, _flax_trained(_of_one_process, tx, lambda step: _batch(step, size), size))
    hvd.check_in_sync(got)


class _Norm(equinox.Module):
    scale: Any
    bias: Any
    statistics: Callable[[Any], Any] = equinox.field(static=True)

    def __call__(self, x: Any) -> Any:
        mean, variance = self.statistics(x)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * self.scale + self.bias


class _Model(equinox.Module):
    first: Any
    norm: _Norm
    last: Any

    def __init__(self, statistics: Callable[[Any], Any]) -> None:
        one, two = jax.random.split(jax.random.key(1))
        self.first = equinox.nn.Linear(5, 8, key=one)
        self.norm = _Norm(jnp.ones(8), jnp.zeros(8), statistics)
        self.last = equinox.nn.Linear(8, 2, key=two)

    def __call__(self, x: Any) -> Any:
        return jax.vmap(self.last)(jax.nn.relu(self.norm(jax.vmap(self.first)(x))))


def _equinox_trained(
    statistics: Callable[[Any], Any],
    reduced: Callable[[Any], Any],
    batch_of: Callable[[int], Any],
) -> Any:
    model = _Model(statistics)
    tx = optax.adam(0.02)
    state = tx.init(equinox.filter(model, equinox.is_array))

    def loss(model: Any, batch: Any) -> Any:
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    @equinox.filter_jit
    def step(model: Any, state: Any, batch: Any) -> Any:
        _, grads = equinox.filter_value_and_grad(loss)(model, batch)
        updates, state = tx.update(reduced(grads), state, model)
        return equinox.apply_updates(model, updates), state

    for number in range(STEPS):
        model, state = step(model, state, batch_of(number))
    return jax.tree.leaves(equinox.filter(model, equinox.is_array))


def a_model_of_equinox_equals_one_process(rank: int, size: int) -> None:
    got = _equinox_trained(
        hvd.batch_statistics, hvd.reduce_gradients, lambda step: _part(_batch(step, size), rank)
    )
    expected = _equinox_trained(
        lambda x: (x.mean(0), x.var(0)), lambda grads: grads, lambda step: _batch(step, size)
    )
    _near(got, expected)


if __name__ == "__main__":
    compile_once()
    jax.config.update("jax_enable_x64", True)
    hvd.init()
    globals()[sys.argv[1]](hvd.rank(), hvd.size())
    print("equal", flush=True)
    hvd.shutdown()
