"""An optimizer of optax whose gradients are those of all ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from horovod.jax.compression import Compression
from horovod.jax.gradients import own_name, reduce_gradients
from horovod.train.gradients import check_passes
from horovod.train.optimizer_options import checked_reduction
from horovod.train.process_set import ProcessSet, global_process_set
from horovod.train.reduce_op import Average


class DistributedState(NamedTuple):
    """The state of an optimizer that communicates after several passes.

    Attributes:
        inner_state: of the optimizer itself.
        accumulated: the sum of gradients since the last step.
        pass_count: how many there are, int32.
    """

    inner_state: Any
    accumulated: Any
    pass_count: Any


def DistributedOptimizer(
    tx: Any,
    *,
    op: int = Average,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    gradient_predivide_factor: float = 1.0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
) -> Any:
    """Wraps an optimizer of optax: its updates are made of the gradients of all ranks.

    Clipping and weight decay belong inside: ``DistributedOptimizer(optax.chain(clip, adamw))``
    clips averaged gradients, alike on all ranks.

    Args:
        tx: the optimizer. With one pass, the state is its own: checkpoints load without Horovod.
        op: Average, Sum or Adasum.
        compression: of gradients on the wire.
        backward_passes_per_step: of so many updates, the last one communicates and steps, on the
            sum of their gradients; the others return zeros. Sums of 16-bit gradients are float32.
        average_aggregated_gradients: whether that sum becomes a mean.
        gradient_predivide_factor, groups, process_set: as in :func:`horovod.jax.reduce_gradients`.
        name: what the ranks agree on; None numbers the optimizers in the order in which they are
            made.

    Returns:
        An ``optax.GradientTransformationExtraArgs``; its ``update`` also takes ``weight``, of this
        rank in the average.

    Raises:
        UsageError: the arguments are wrong.
        NotInitializedError: ``hvd.init()`` was not called.
        ImportError: optax is not installed.
    """
    try:
        import optax
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "hvd.DistributedOptimizer needs optax: pip install optax", name="optax"
        ) from error
    check_passes(backward_passes_per_step)
    options = {
        "op": checked_reduction(op, gradient_predivide_factor),
        "compression": compression,
        "gradient_predivide_factor": gradient_predivide_factor,
        "groups": groups,
        "process_set": process_set,
        "name": name or own_name("DistributedOptimizer", process_set),
    }
    inner = optax.with_extra_args_support(tx)

    def update(
        grads: Any, state: Any, params: Any = None, *, weight: Any = None, **extra: Any
    ) -> tuple[Any, Any]:
        reduced = reduce_gradients(grads, weight=weight, **options)
        updates, new_state = inner.update(reduced, state, params, **extra)
        return updates, new_state

    if backward_passes_per_step == 1:
        return optax.GradientTransformationExtraArgs(inner.init, update)
    passes = _Passes(inner, update, backward_passes_per_step, average_aggregated_gradients)
    return optax.GradientTransformationExtraArgs(passes.init, passes.update)


class _Passes:
    """Sums gradients, and steps after so many."""

    def __init__(self, inner: Any, step: Any, passes: int, is_mean: bool) -> None:
        self._inner = inner
        self._step = step
        self._passes = passes
        self._factor = 1.0 / passes if is_mean else 1.0

    def init(self, params: Any) -> DistributedState:
        accumulated = jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), _wide(p)), params)
        return DistributedState(self._inner.init(params), accumulated, jnp.zeros((), jnp.int32))

    def update(
        self, grads: Any, state: DistributedState, params: Any = None, **extra: Any
    ) -> tuple[Any, DistributedState]:
        sums = jax.tree.map(lambda a, g: a + g.astype(a.dtype), state.accumulated, grads)

        def step(sums: Any, inner_state: Any) -> tuple[Any, Any, Any]:
            whole = jax.tree.map(lambda s, g: (s * self._factor).astype(g.dtype), sums, grads)
            updates, new_state = self._step(whole, inner_state, params, **extra)
            return updates, new_state, jax.tree.map(jnp.zeros_like, sums)

        kinds = jax.eval_shape(step, sums, state.inner_state)

        def wait(sums: Any, inner_state: Any) -> tuple[Any, Any, Any]:
            zeros = jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), kinds[0])
            same = jax.tree.map(lambda v, kind: jnp.asarray(v, kind.dtype), inner_state, kinds[1])
            return zeros, same, sums

        count = state.pass_count + 1
        is_last = count >= self._passes
        updates, inner_state, rest = jax.lax.cond(is_last, step, wait, sums, state.inner_state)
        return updates, DistributedState(inner_state, rest, jnp.where(is_last, 0, count))


def _wide(array: Any) -> Any:
    dtype = jnp.result_type(array)
    is_narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.float32 if is_narrow else dtype
