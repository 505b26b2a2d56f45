"""The contract suite's view of horovod.jax, outside and inside of jit."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from gradients import ABILITIES
from jax_lacking import lacking

import horovod.jax as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

_IN_PROGRAMS = (
    "allreduce",
    "broadcast",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
)


class JaxApi:
    """See :class:`collectives.Api`.

    Args:
        is_jitted: whether what may be part of a program is made one.
    """

    interface = hvd
    abilities = ABILITIES

    # Each dtype and shape is compiled anew. jax_cases.py sends all dtypes at once.
    lacking_dtypes = (
        *("int8", "int16", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float64", "int64"),
    )

    def __init__(self, is_jitted: bool) -> None:
        self._is_jitted = is_jitted

    def tensor(self, values: Any, dtype: str) -> Any:
        return jax.device_put(np.asarray(values).astype(jnp.dtype(dtype)))

    def values(self, tensor: Any) -> Any:
        kind = "float64" if jnp.issubdtype(tensor.dtype, jnp.floating) else "int64"
        return np.asarray(tensor).astype(kind)

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype.name)

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        public = getattr(hvd, function)
        if not self._is_jitted or function not in _IN_PROGRAMS:
            return hvd.synchronize(public(*args, **kwargs))
        first, *rest = args
        return hvd.synchronize(_in_our_words(jax.jit(lambda x: public(x, *rest, **kwargs)), first))

    def start(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        done: Future[Any] = Future()

        def body() -> None:
            try:
                done.set_result(self.call(function, *args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=body, daemon=True).start()
        return done

    def finish(self, handle: Any) -> Any:
        return handle.result(timeout=60)

    def gradient(
        self, function: Callable[[Any], Any], values: Any, weight: Callable[[Any], Any]
    ) -> Any:
        y, pull_back = jax.vjp(function, jnp.asarray(values, jnp.float32))
        (cotangent,) = pull_back(jnp.asarray(weight(self.values(y)), y.dtype))
        return np.asarray(cotangent)

    def reduced(
        self, passes: list[dict[str, Any]], weights: list[float] | None, is_mean: bool
    ) -> dict[str, Any]:
        tx = hvd.DistributedOptimizer(
            optax.identity(), backward_passes_per_step=len(passes),
            average_aggregated_gradients=is_mean,
        )  # fmt: skip
        update = jax.jit(tx.update) if self._is_jitted else tx.update
        trees = [jax.tree.map(jnp.asarray, tree) for tree in passes]
        state = tx.init(trees[0])
        for number, tree in enumerate(trees):
            more = {} if weights is None else {"weight": weights[number]}
            updates, state = update(tree, state, **more)
        return jax.tree.map(np.asarray, updates)


def _in_our_words(program: Any, argument: Any) -> Any:
    from horovod.jax.errors import in_our_words

    with in_our_words():
        return program(argument)


def run_all_checks(is_jitted: bool) -> list[str]:
    """Runs every check; returns their names. Runs on each rank of a job that has begun."""
    import collectives
    from checks import CHECKS

    collectives.SHAPES = ((), (0,), (17,), (3, 17, 5))
    done = []
    for check in CHECKS:
        if check.__name__ not in lacking():
            check(JaxApi(is_jitted), hvd.rank(), hvd.size())
            done.append(check.__name__)
    return done
