"""Batch normalization whose statistics are those of the batches of all ranks together."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from horovod._train.batch_statistics import merged_moments
from horovod._train.numbering import LayerName, LayerNames
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.reduce_op import Sum
from horovod.errors import UsageError
from horovod.tensorflow.exchanges import allgather
from horovod.tensorflow.rank_ops import is_member_op
from horovod.tensorflow.reductions import allreduce

__all__ = ["SyncBatchNormalization"]

_names = LayerNames("sync_batch_norm")


class _Moments:
    """What the layers of both generations of Keras do in training."""

    process_set: ProcessSet
    _layer_name: LayerName
    _calls: WeakKeyDictionary[Any, int]

    def _over_ranks(self, inputs: Any, mask: Any, axes: list[int]) -> tuple[Any, Any] | None:
        """Mean and variance of each channel over all ranks; None in eager mode without others.

        A graph finds out when it runs, so it stays right in a later job of other ranks.
        """
        group = group_of(self.process_set)
        if tf.executing_eagerly() and (group.size == 1 or not group.is_member):
            return None
        count, mean, var = _local_moments(tf.convert_to_tensor(inputs), mask, axes)
        name = self._next_name()

        def merged() -> tuple[tf.Tensor, tf.Tensor]:
            return _merge_over_ranks(count, mean, var, name, self.process_set)

        if tf.executing_eagerly() or self.process_set is global_process_set:
            return merged()
        own = (tf.identity(mean), tf.identity(var))
        return tuple(tf.cond(is_member_op(self.process_set), merged, lambda: own))

    def _next_name(self) -> str:
        """Of this call; a layer may be called several times in one graph."""
        name = _names.use(self._layer_name, self.process_set)
        if tf.executing_eagerly():
            return name
        graph = tf.compat.v1.get_default_graph()
        call = self._calls[graph] = self._calls.get(graph, 0) + 1
        return f"{name}.call.{call}"


class _MomentsOfKeras3(_Moments):
    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        plain: Any = super()
        this: Any = self
        found = self._over_ranks(inputs, mask, this._reduction_axes)
        return found or plain._moments(inputs, mask)


class _MomentsOfKeras2(_Moments):
    def _calculate_mean_and_var(
        self, inputs: Any, reduction_axes: list[int], keep_dims: bool, mask: Any = None
    ) -> tuple[Any, Any]:
        plain: Any = super()
        moments = self._over_ranks(inputs, mask, reduction_axes)
        if moments is None:
            return plain._calculate_mean_and_var(  # type: ignore[no-any-return]
                inputs, reduction_axes, keep_dims, mask
            )
        mean, var = moments
        for axis in sorted(reduction_axes) if keep_dims else ():
            mean, var = tf.expand_dims(mean, axis), tf.expand_dims(var, axis)
        return mean, var


_IS_KERAS_2 = hasattr(tf.keras.layers.BatchNormalization, "_calculate_mean_and_var")
_MomentsOfKeras: Any = _MomentsOfKeras2 if _IS_KERAS_2 else _MomentsOfKeras3


@tf.keras.utils.register_keras_serializable(package="horovod")
class SyncBatchNormalization(_MomentsOfKeras, tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalization over the batches of all ranks; takes the place of BatchNormalization.

    It is a layer of ``tf.keras``: of Keras 3, or with TF_USE_LEGACY_KERAS=1 of tf_keras.

    In training mean and variance are those of all ranks' batches together, which may differ in size
    and may be empty on some ranks. The forward pass sends one small message, the backward pass
    another. In inference, on a single rank, and on ranks outside of the process set it is ordinary
    batch normalization.

    Gradients of gamma and beta are those of this rank's batch; the optimizer reduces them. The
    gradient of the input is that of the sum of all ranks' losses. If batches differ in size, let
    each rank divide the sum of its losses by the same number.

    All ranks must make their layers, and run them, in the same order.

    Args:
        fused: must be False, as fused kernels know nothing of other ranks.
        process_set: the ranks whose batches are normalized together. A saved layer forgets it.
        kwargs: those of tf.keras.layers.BatchNormalization.

    Raises:
        UsageError: ``fused`` is True or None.

    Example:
        >>> model = keras.Sequential([keras.layers.Dense(16), hvd.SyncBatchNormalization()])
    """

    def __init__(
        self,
        fused: bool = False,
        *,
        process_set: ProcessSet = global_process_set,
        **kwargs: object,
    ) -> None:
        if fused or fused is None:
            raise UsageError(
                f"SyncBatchNormalization(fused={fused}): there is no fused kernel that normalizes "
                "over ranks; leave it out"
            )
        if _IS_KERAS_2:
            kwargs["fused"] = False
        super().__init__(**kwargs)
        self.process_set = process_set
        # XLA cannot hold operations of other ranks; Keras asks for this before it compiles.
        self.supports_jit = False
        self._layer_name = _names.new(process_set)
        self._calls: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def _local_moments(
    inputs: tf.Tensor, mask: Any, axes: list[int]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """How many values each channel has on this rank, their mean and their variance; 0 if none."""
    present = tf.fill(tf.shape(inputs), True)
    if mask is not None:
        # As Keras has it: the mask lacks the last dimension.
        present = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
        # What does not count may be NaN, which would be left in gradients.
        inputs = tf.where(present, inputs, tf.zeros_like(inputs))
    weights = tf.cast(present, inputs.dtype)
    count = tf.reduce_sum(weights, axes, keepdims=True)

    def mean_of(values: tf.Tensor) -> tf.Tensor:
        chosen = tf.where(present, values, tf.zeros_like(values))
        return tf.math.divide_no_nan(tf.reduce_sum(chosen, axes, keepdims=True), count)

    mean = mean_of(inputs)
    var = mean_of(tf.square(inputs - mean))
    return tf.squeeze(count, axes), tf.squeeze(mean, axes), tf.squeeze(var, axes)


def _merge_over_ranks(
    count: tf.Tensor, mean: tf.Tensor, var: tf.Tensor, name: str, process_set: ProcessSet
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of all ranks' values together."""
    dtype = mean.dtype

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def merge(mean: tf.Tensor, var: tf.Tensor) -> Any:
        own = tf.cast(tf.stack([count, mean, var]), tf.float64)
        rows = allgather(own[tf.newaxis], name, ignore_name_scope=True, process_set=process_set)
        counts, means, variances = tf.unstack(rows, axis=1)
        total = tf.reduce_sum(counts, axis=0)
        shares = tf.math.divide_no_nan(counts, total)
        all_mean, all_var = merged_moments(shares, means, variances, partial(tf.reduce_sum, axis=0))

        def gradient(of_mean: tf.Tensor, of_var: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            # The losses of all ranks depend on this rank's values.
            sums = allreduce(
                tf.cast(tf.stack([of_mean, of_var]), tf.float64),
                op=Sum,
                name=f"{name}.gradient",
                ignore_name_scope=True,
                process_set=process_set,
            )
            share = tf.math.divide_no_nan(own[0], total)
            own_mean = share * (sums[0] + 2.0 * (own[1] - all_mean) * sums[1])
            return tf.cast(own_mean, dtype), tf.cast(share * sums[1], dtype)

        return (tf.cast(all_mean, dtype), tf.cast(all_var, dtype)), gradient

    merged: tuple[tf.Tensor, tf.Tensor] = merge(mean, var)
    return merged
