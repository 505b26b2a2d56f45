"""Collectives on values: numbers, arrays and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._train.reduce_op import Average, resolve_reduce_op
from horovod.tensorflow import ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.state import broadcast_global_variables

if TYPE_CHECKING:
    from horovod._train.compression import CompressorLike
    from horovod.tensorflow.interface_types import TensorLike

__all__ = ["allgather", "allreduce", "broadcast", "broadcast_global_variables", "reducescatter"]


def allreduce(
    value: TensorLike,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: CompressorLike = Compression.none,
) -> Any:
    """Reduces a value over all ranks.

    Args:
        value: of the same shape and dtype on all ranks.
        name: what the ranks agree on; None counts up.
        average: deprecated; True for op=Average, False for op=Sum.
        prescale_factor: applied before the reduction.
        postscale_factor: applied after it.
        op: Average if None.
        compression: how the value travels.

    Returns:
        A tensor; in a graph of tf.compat.v1 a NumPy array.

    Raises:
        UsageError: ``op`` and ``average`` are both given.
    """
    reduced = ops.allreduce(
        tf.constant(value),
        op=resolve_reduce_op(op, average),
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
    )
    return _evaluated(reduced)


def allgather(value: TensorLike, name: str | None = None) -> Any:
    """Concatenates the values of all ranks along the first dimension, in rank order.

    Args:
        value: of the same dtype and shape on all ranks, but for the first dimension.
        name: what the ranks agree on; None counts up.

    Returns:
        A tensor; in a graph of tf.compat.v1 a NumPy array.
    """
    return _evaluated(ops.allgather(tf.constant(value), name=name))


def broadcast(value: TensorLike, root_rank: int, name: str | None = None) -> Any:
    """Returns the value of one rank on all of them.

    Args:
        value: of the same shape and dtype on all ranks.
        root_rank: whose value.
        name: what the ranks agree on; None counts up.

    Returns:
        A tensor; in a graph of tf.compat.v1 a NumPy array.
    """
    return _evaluated(ops.broadcast(tf.constant(value), root_rank, name=name))


def reducescatter(value: TensorLike, name: str | None = None, op: int = Average) -> Any:
    """Reduces a value over all ranks, and gives each its share of the rows.

    Args:
        value: of the same shape and dtype on all ranks; not a scalar.
        name: what the ranks agree on; None counts up.
        op: Average or Sum.

    Returns:
        A tensor; in a graph of tf.compat.v1 a NumPy array.
    """
    return _evaluated(ops.reducescatter(tf.constant(value), op=op, name=name))


def _evaluated(tensor: Any) -> Any:
    if tf.executing_eagerly():
        return tensor
    session = tf.compat.v1.get_default_session()
    if session is not None:
        return session.run(tensor)
    with tf.compat.v1.Session(graph=tensor.graph) as own_session:
        return own_session.run(tensor)
