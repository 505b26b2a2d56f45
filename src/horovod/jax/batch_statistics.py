"""Statistics of the batches of all ranks together, for layers that normalize by them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from horovod._train.batch_statistics import merged_moments
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod.errors import UsageError
from horovod.jax.ops import allgather

if TYPE_CHECKING:
    from collections.abc import Sequence

    import jax

__all__ = ["batch_statistics"]


def batch_statistics(
    x: jax.typing.ArrayLike,
    axis: int | Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Any, Any]:
    """Mean and variance of a batch that all ranks hold parts of, for batch normalization.

    One collective forward, and one for the gradients, which are those of one process that has the
    whole batch. It runs inside and outside of jit; parts may have different numbers of rows.

    Args:
        x: float16, bfloat16, float32 or float64 of this rank's part, of any shape.
        axis: what is reduced; by default, all axes but the last one, which is that of channels.
        name: what the ranks agree on; without one, the file and line of the caller.
        process_set: the ranks that take part.

    Returns:
        Mean and biased variance, of the shape of ``x`` without the axes; float32 for 16-bit inputs.

    Raises:
        UsageError: ``x`` has no floating-point numbers, or no axis to reduce.
        HorovodInternalError: the job failed, or ranks disagree; see :func:`allreduce`.

    Example:
        >>> mean, variance = hvd.batch_statistics(x)           # x: (batch, height, width, channels)
        >>> y = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
    """
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating) or not x.ndim:
        raise UsageError(f"batch_statistics() of {x.dtype} {x.shape}: give floating-point numbers")
    if x.dtype.itemsize < 4:
        x = x.astype(jnp.float32)
    axes = tuple(range(x.ndim - 1)) or (0,) if axis is None else axis
    axes = tuple(each % x.ndim for each in ((axes,) if isinstance(axes, int) else axes))
    count = math.prod(x.shape[each] for each in axes)
    # Of no rows, the mean would be no number; they count nothing.
    mean = x.sum(axes) / max(count, 1)
    variance = jnp.square(x - jnp.expand_dims(mean, axes)).sum(axes) / max(count, 1)
    row = (jnp.full((1,), count, x.dtype), mean[None], variance[None])
    sizes = [1] * group_of(process_set).size
    counts, means, variances = allgather(row, name=name, sizes=sizes, process_set=process_set)
    shares = (counts / counts.sum()).reshape((-1,) + (1,) * mean.ndim)
    merged: tuple[Any, Any] = merged_moments(shares, means, variances, lambda rows: rows.sum(0))
    return merged
