"""Reductions of ``tf.IndexedSlices``: rows with their indices, as embeddings have gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._rank.reduction import ReduceOp
from horovod.tensorflow import calls, rank_ops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._rank.reduction import Reduction
    from horovod.tensorflow.calls import CollectiveCall


def check_reduction(reduction: Reduction) -> None:
    """Refuses what gathering cannot do.

    Raises:
        NotImplementedError: the reduction is neither Sum nor Average, or has a factor.
    """
    if reduction.op is ReduceOp.ADASUM:
        raise NotImplementedError(
            "Adasum of tf.IndexedSlices is not supported; reduce dense gradients, with "
            "sparse_as_dense=True or tf.convert_to_tensor"
        )
    if reduction.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise NotImplementedError(
            f"{reduction.op.name} of tf.IndexedSlices is not supported, only Average and Sum are; "
            "use tf.convert_to_tensor for a dense tensor"
        )
    if reduction.prescale != 1.0 or reduction.postscale != 1.0:
        raise NotImplementedError(
            "prescale_factor and postscale_factor of tf.IndexedSlices are not supported; scale "
            "the values before or after"
        )


def allreduce(
    call: CollectiveCall, slices: tf.IndexedSlices, reduction: Reduction
) -> tf.IndexedSlices:
    """Gathers values and indices of all ranks; duplicate indices stay, which means their sum."""
    (reduced,) = grouped_allreduce(call, [slices], reduction)
    return reduced


def grouped_allreduce(
    call: CollectiveCall, slices: Sequence[tf.IndexedSlices], reduction: Reduction
) -> list[tf.IndexedSlices]:
    """Gathers several at once; values may be of different dtypes."""
    check_reduction(reduction)
    values = calls.grouped_allgather(
        calls.renamed(call, ".values"), [tf.convert_to_tensor(each.values) for each in slices]
    )
    indices = calls.grouped_allgather(
        calls.renamed(call, ".indices"), [tf.convert_to_tensor(each.indices) for each in slices]
    )
    if reduction.op is ReduceOp.AVERAGE:
        values = [each / _size(call, each.dtype) for each in values]  # integers to floats, as ever
    return [
        tf.IndexedSlices(value, index, dense_shape=each.dense_shape)
        for value, index, each in zip(values, indices, slices, strict=True)
    ]


def _size(call: CollectiveCall, dtype: tf.DType) -> Any:
    return tf.cast(rank_ops.size_op(call.process_set_id, job=call.job), dtype)
