"""What compression to 8 bits has rounded off gradients, which is added to those of the next step.

The engine does the sums. Each rank has its own errors: together, those of all ranks are what the
results lack. So they go with the number of their rank, and a rank takes none of another one: a
state that was broadcast, or loaded from one file, does not count several times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from horovod._train.compression import always_quantizes
from horovod._train.optimizer_options import checked_reduction, reduces
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.reduce_op import Average
from horovod.errors import UsageError
from horovod.jax.calls import Leaves
from horovod.jax.gradients import as_floats, check_gradients, is_float0, parts_of
from horovod.jax.ops import reduce_leaves

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from horovod.jax.gradients import GradientOptions
    from horovod.jax.interface_types import PyTree

NOBODY = -1


class GradientErrors(NamedTuple):
    """The rounding errors of gradients that this rank keeps.

    Attributes:
        kept_by: the global rank whose they are, an int32 scalar; -1 for zeros of nobody. On another
            rank they count as zeros.
        values: float32, of the shapes of the gradients; complex ones have two in a pair in front.
    """

    kept_by: Any
    values: Any


class FeedbackState(NamedTuple):
    """The state of an optimizer whose gradients travel in 8 bits.

    Attributes:
        inner_state: of the optimizer itself.
        errors: of this rank, see :class:`GradientErrors`.
    """

    inner_state: Any
    errors: GradientErrors


def init_gradient_errors(params: PyTree) -> GradientErrors:
    """Return errors that are zero, for the first step.

    Args:
        params: the parameters, or gradients of the same shapes.
    """

    def zeros(leaf: Any) -> Any:
        if is_float0(leaf) or not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            return jnp.zeros(0, jnp.float32)
        shape = jnp.shape(leaf)
        return jnp.zeros((2, *shape) if jnp.iscomplexobj(leaf) else shape, jnp.float32)

    return GradientErrors(jnp.asarray(NOBODY, jnp.int32), jax.tree.map(zeros, params))


def reduce_gradients_with_errors(
    grads: PyTree,
    errors: GradientErrors,
    *,
    process_set: ProcessSet = global_process_set,
    name: str | None = None,
    **options: Unpack[GradientOptions],
) -> tuple[Any, GradientErrors]:
    """Reduce gradients, and add what was rounded off earlier ones.

    If a reduced gradient is infinite or NaN, so that no step should use it, the errors are zero
    afterwards.

    Args:
        grads: as in :func:`horovod.jax.reduce_gradients`.
        errors: what the last step returned; at first of :func:`init_gradient_errors`.
        process_set: the ranks that take part.
        name: what the ranks agree on; None for file and line of the caller.
        options: of :func:`horovod.jax.reduce_gradients`; the compression must be one to 8 bits.

    Returns:
        The gradients, and the errors for the next step.

    Raises:
        UsageError: the arguments are wrong, or the errors are those of another tree.
        HorovodInternalError, or JaxRuntimeError in a jitted program: the job failed.
    """
    factor = options.get("gradient_predivide_factor", 1.0)
    reduction = checked_reduction(options.get("op", Average), factor)
    compression = options.get("compression")
    if compression is None or not always_quantizes(compression):
        raise UsageError(
            "errors are of compression to 8 bits: give compression=hvd.Compression.int8, fp8 or "
            "fp8_e5m2, or use hvd.reduce_gradients"
        )
    paths = check_gradients(grads)
    leaves, structure = jax.tree.flatten(grads)
    kept, kept_structure = jax.tree.flatten(errors.values)
    if structure != kept_structure:
        raise UsageError(
            f"the errors are those of another tree: {kept_structure} instead of {structure}; "
            "begin with init_gradient_errors(params)"
        )
    moved = [i for i, leaf in enumerate(leaves) if not is_float0(leaf)]
    parts = parts_of(moved, structure, options.get("groups"))
    if not parts or not reduces(group_of(process_set)):
        return grads, errors
    holder = errors.kept_by
    for number, part in enumerate(parts):
        sent = [as_floats(leaves[i], paths[i]) for i in part]
        own = name if name is None or len(parts) == 1 else f"{name}.{number}"
        before = [_fitting(kept[i], s, paths[i]) for i, s in zip(part, sent, strict=True)]
        chosen = [paths[i] for i in part]
        got, (*values, holder) = reduce_leaves(
            Leaves(sent, chosen, jax.tree.structure(sent), (*before, errors.kept_by)), op=reduction,
            name=own, compression=compression, weight=options.get("weight"),
            factors=(1.0 / factor, float(factor)), process_set=process_set,
        )  # fmt: skip
        for i, array, value in zip(part, got, values, strict=True):
            is_pair = jnp.iscomplexobj(leaves[i])
            leaves[i] = jax.lax.complex(array[0], array[1]) if is_pair else array
            kept[i] = value
    is_sound = _all_finite([leaves[i] for i in moved])
    kept = [jnp.where(is_sound, value, jnp.zeros_like(value)) for value in kept]
    return (
        jax.tree.unflatten(structure, leaves),
        GradientErrors(holder, jax.tree.unflatten(structure, kept)),
    )


def feed_back(inner: Any, options: dict[str, Any]) -> Any:
    """Return the optimizer that reduces gradients in 8 bits, and keeps the errors in its state.

    Args:
        inner: an optimizer of optax that takes extra arguments.
        options: of :func:`reduce_gradients_with_errors`.
    """
    import optax

    def init(params: Any) -> FeedbackState:
        return FeedbackState(inner.init(params), init_gradient_errors(params))

    def update(
        grads: Any, state: FeedbackState, params: Any = None, *, weight: Any = None, **extra: Any
    ) -> tuple[Any, FeedbackState]:
        reduced, errors = reduce_gradients_with_errors(
            grads, state.errors, weight=weight, **options
        )
        updates, new_state = inner.update(reduced, state.inner_state, params, **extra)
        return updates, FeedbackState(new_state, errors)

    return optax.GradientTransformationExtraArgs(init, update)


def without_errors(tree: PyTree) -> Any:
    """Return a tree with None in place of the errors, which are each rank's own."""

    def is_kept(node: object) -> bool:
        return isinstance(node, GradientErrors)

    return jax.tree.map(lambda node: None if is_kept(node) else node, tree, is_leaf=is_kept)


def _fitting(kept: Any, sent: Any, path: str) -> Any:
    if jnp.shape(kept) != jnp.shape(sent):
        raise UsageError(
            f"the errors of {path or 'the gradient'} are of shape {jnp.shape(kept)}, but it is "
            f"sent as {jnp.shape(sent)}: they are those of another tree"
        )
    return jnp.asarray(kept, jnp.float32)


def _all_finite(arrays: list[Any]) -> Any:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(array)) for array in arrays]))
