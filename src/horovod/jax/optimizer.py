"""An optimizer of optax whose gradients are those of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from horovod._train.compression import always_quantizes, check_quantizes
from horovod._train.gradients import check_passes
from horovod._train.optimizer_options import checked_reduction
from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average
from horovod._train.weights import check_weight
from horovod.jax.compression import Compression
from horovod.jax.error_feedback import feed_back
from horovod.jax.gradients import check_gradients, is_float0, own_name, reduce_gradients
from horovod.jax.shares.exchange import exchange_of
from horovod.jax.shares.optimizer import ShardedOptimizer

if TYPE_CHECKING:
    import optax

    from horovod._train.compression import CompressorLike
    from horovod.jax.interface_types import Groups


class DistributedState(NamedTuple):
    """The state of an optimizer that communicates after several passes.

    Attributes:
        inner_state: of the optimizer itself.
        accumulated: the sum of gradients since the last step, each times its weight.
        pass_count: how many there are, int32.
        weight: the sum of their weights; 1 for each of those without one.
    """

    inner_state: Any
    accumulated: Any
    pass_count: Any
    weight: Any


def DistributedOptimizer(
    tx: optax.GradientTransformation,
    *,
    op: int = Average,
    compression: CompressorLike = Compression.none,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    gradient_predivide_factor: float = 1.0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
    shard_state: bool = False,
) -> Any:
    """Wraps an optimizer of optax: its updates are made of the gradients of all ranks.

    Clipping and weight decay belong inside: ``DistributedOptimizer(optax.chain(clip, adamw))``
    clips averaged gradients, alike on all ranks.

    Args:
        tx: the optimizer. With one pass, the state is its own: checkpoints load without Horovod.
            With a compression to 8 bits, it is a :class:`horovod.jax.FeedbackState`, which also has
            the rounding errors of this rank.
        op: Average, Sum or Adasum.
        compression: of gradients on the wire.
        backward_passes_per_step: of so many updates, the last one communicates and steps, on the
            sum of their gradients; the others return zeros. Sums of 16-bit gradients are float32.
            With weights, each gradient counts as often as its weight says: what one process gets
            from all samples of all passes, times the number of passes.
        average_aggregated_gradients: whether that sum becomes a mean.
        gradient_predivide_factor, groups, process_set: as in :func:`horovod.jax.reduce_gradients`.
        name: what the ranks agree on; None numbers the optimizers in the order in which they are
            made.
        shard_state: whether each rank keeps and computes its share of the state alone (ZeRO, stage
            1). Gradients are reduce-scattered and updates gathered. The state is then a
            :class:`horovod.jax.ShardedState`.

    Returns:
        An ``optax.GradientTransformationExtraArgs``; its ``update`` also takes ``weight``, of this
        rank in the average; in all passes of a step, or in none.

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
    reduction = checked_reduction(op, gradient_predivide_factor)
    check_quantizes(compression, reduction)
    options: dict[str, Any] = {
        "op": reduction,
        "compression": compression,
        "gradient_predivide_factor": gradient_predivide_factor,
        "groups": groups,
        "process_set": process_set,
        "name": name or own_name("DistributedOptimizer", process_set),
    }
    inner = _reducing(optax.with_extra_args_support(tx), options, shard_state)
    if backward_passes_per_step == 1:
        return optax.GradientTransformationExtraArgs(inner.init, inner.update)
    passes = _Passes(inner, inner.update, backward_passes_per_step, average_aggregated_gradients)
    return optax.GradientTransformationExtraArgs(passes.init, passes.update)


def _reducing(inner: Any, options: dict[str, Any], shard_state: bool) -> Any:
    """Return an optimizer that reduces gradients in each update."""
    import optax

    if shard_state:
        return ShardedOptimizer(inner, exchange_of(options))
    if always_quantizes(options["compression"]):
        return feed_back(inner, options)

    def update(
        grads: Any, state: Any, params: Any = None, *, weight: Any = None, **extra: Any
    ) -> tuple[Any, Any]:
        reduced = reduce_gradients(grads, weight=weight, **options)
        updates, new_state = inner.update(reduced, state, params, **extra)
        return updates, new_state

    return optax.GradientTransformationExtraArgs(inner.init, update)


class _Passes:
    """Sums gradients, and steps after so many."""

    def __init__(self, inner: Any, step: Any, passes: int, is_mean: bool) -> None:
        self._inner = inner
        self._step = step
        self._passes = passes
        self._factor = 1.0 if is_mean else float(passes)

    def init(self, params: Any) -> DistributedState:
        accumulated = jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), _wide(p)), params)
        no_weight = jnp.zeros((), _weight_dtype())
        count = jnp.zeros((), jnp.int32)
        return DistributedState(self._inner.init(params), accumulated, count, no_weight)

    def update(
        self,
        grads: Any,
        state: DistributedState,
        params: Any = None,
        *,
        weight: Any = None,
        **extra: Any,
    ) -> tuple[Any, DistributedState]:
        check_gradients(grads)
        own = None if weight is None else _checked(weight)
        sums = jax.tree.map(lambda a, g: _added(a, g, own), state.accumulated, grads)
        total = state.weight + (1.0 if own is None else own)
        whole = _Whole(self._factor, grads)

        def step(sums: Any, total: Any, inner_state: Any) -> tuple[Any, Any, Any, Any]:
            chosen = {} if own is None else {"weight": total}
            updates, new_state = self._step(
                whole.of(sums, total), inner_state, params, **chosen, **extra
            )
            zeros = jax.tree.map(jnp.zeros_like, sums)
            return whole.kept(updates), new_state, zeros, jnp.zeros_like(total)

        kinds = jax.eval_shape(step, sums, total, state.inner_state)

        def wait(sums: Any, total: Any, inner_state: Any) -> tuple[Any, Any, Any, Any]:
            zeros = jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), kinds[0])
            same = jax.tree.map(lambda v, kind: jnp.asarray(v, kind.dtype), inner_state, kinds[1])
            return zeros, same, sums, total

        count = state.pass_count + 1
        is_last = count >= self._passes
        operands = (sums, total, state.inner_state)
        if isinstance(is_last, jax.core.Tracer):
            updates, inner_state, rest, left = jax.lax.cond(is_last, step, wait, *operands)
        else:
            # Outside of jit, JAX would compile both branches for each update.
            updates, inner_state, rest, left = (step if is_last else wait)(*operands)
        count = jnp.where(is_last, 0, count)
        return whole.completed(updates), DistributedState(inner_state, rest, count, left)


class _Whole:
    """The gradients of all passes, for a step below a ``lax.cond``, which knows no float0.

    Args:
        factor: by which their weighted mean is multiplied.
        grads: of the last pass.
    """

    def __init__(self, factor: float, grads: Any) -> None:
        self._factor = factor
        self._grads = grads
        self._without_values: list[Any] = []
        self._structure: Any = None

    def of(self, sums: Any, total: Any) -> Any:
        """The weighted mean times the factor, in the dtypes of the gradients; 0 of no weight."""
        share = self._factor / jnp.where(total == 0, 1.0, total)

        def scaled(s: Any, g: Any) -> Any:
            if is_float0(g):
                return g
            return (s * share.astype(jnp.finfo(s.dtype).dtype)).astype(jnp.result_type(g))

        return jax.tree.map(scaled, sums, self._grads)

    def kept(self, updates: Any) -> Any:
        """Return the updates, without leaves of float0."""
        leaves, self._structure = jax.tree.flatten(updates)
        self._without_values = [leaf if is_float0(leaf) else None for leaf in leaves]
        return [leaf for leaf in leaves if not is_float0(leaf)]

    def completed(self, updates: list[Any]) -> Any:
        """The tree of updates again."""
        rest = iter(updates)
        leaves = [next(rest) if leaf is None else leaf for leaf in self._without_values]
        return jax.tree.unflatten(self._structure, leaves)


def _added(total: Any, gradient: Any, weight: Any) -> Any:
    if is_float0(gradient):
        return total
    wide = jnp.asarray(gradient).astype(total.dtype)
    if weight is None:
        return total + wide
    # What does not count may be NaN.
    times = weight.astype(jnp.finfo(total.dtype).dtype) * wide
    return total + jnp.where(weight == 0, jnp.zeros_like(wide), times)


def _checked(weight: Any) -> Any:
    """Return a weight as a scalar; NaN if it is invalid and only known later.

    The sum of weights is then NaN, which the collective refuses.
    """
    value = weight if isinstance(weight, jax.core.Tracer) else check_weight(weight)
    scalar = jax.lax.stop_gradient(jnp.asarray(value, _weight_dtype()).reshape(()))
    return jnp.where(scalar >= 0, scalar, jnp.nan)


def _weight_dtype() -> Any:
    return jnp.float64 if jax.config.jax_enable_x64 else jnp.float32


def _wide(array: Any) -> Any:
    dtype = jnp.result_type(array)
    is_narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32
    return jnp.float32 if is_narrow else dtype
