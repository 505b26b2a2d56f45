"""The norm of a list of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


def gradient_norm(gradients: Iterable[Any]) -> Any:
    """Return the 2-norm of all gradients together; also inside of ``tf.function``.

    Of what the tape of ``hvd.DistributedGradientTape`` has returned it is that of the reduced
    gradients, which are the same on all ranks, so nothing is sent; of others it is that of this
    rank.

    Args:
        gradients: tensors or IndexedSlices, whose rows of the same index count by their sum; None
            does not count.

    Returns:
        A tensor of no dimension, float64.

    Raises:
        UsageError: there are none.

    Example:
        >>> gradients = tape.gradient(loss, model.trainable_variables)
        >>> hvd.log(loss=loss, gradient_norm=hvd.gradient_norm(gradients))
    """
    squares = [_square_of(gradient) for gradient in gradients if gradient is not None]
    if not squares:
        raise UsageError("gradient_norm() of no gradients: all of them are None")
    return tf.sqrt(tf.add_n(squares))


def _square_of(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        indices, places = tf.unique(gradient.indices)
        values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(indices))
    else:
        values = tf.convert_to_tensor(gradient)
    if values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    magnitudes = tf.abs(values)
    # Sums of many float32 lose digits.
    return tf.reduce_sum(tf.cast(tf.square(magnitudes), tf.float64))
