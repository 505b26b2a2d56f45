"""allreduce and reducescatter in all their forms.

They work eagerly, in ``tf.function``, and in graphs for sessions.

Common arguments:
    tensor: anything that ``tf.convert_to_tensor`` takes, of bool, an integer type, float16,
        bfloat16, float32 or float64; the same dtype on all ranks.
    name: what the ranks agree on. Without one, ranks must call in the same order eagerly; in a
        graph the name of the node counts, which TensorFlow makes from that of the tensor.
    process_set: the ranks that take part.
    ignore_name_scope: whether only the last part of the node's name counts, for ranks whose graphs
        differ around it.
    device_dense, device_sparse: where the operation runs; there are kernels for the CPU, and a GPU
        is passed over.

Common errors:
    UsageError (a ValueError): an argument is wrong.
    tf.errors.InvalidArgumentError: an argument is wrong, found when the operation runs; only this
        rank sees it.
    tf.errors.FailedPreconditionError: the ranks disagree, or Horovod is not initialized.
    tf.errors.UnknownError: a rank was lost, was missing for too long, or has shut down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._train.compression import compressed, quantizing, refuse_quantizing
from horovod._train.process_set import ProcessSet, global_process_set
from horovod._train.reduce_op import Average, Sum, requested_reduction
from horovod.tensorflow import calls, gradients, sparse
from horovod.tensorflow.calls import call_of
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.placement import placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._rank.reduction import Reduction
    from horovod._train.compression import CompressorLike
    from horovod.tensorflow.interface_types import TensorLike

assert gradients  # registers them


def allreduce(
    tensor: TensorLike,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressorLike = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks; the result is the same on each of them.

    Args:
        tensor: any shape, the same on all ranks; or ``tf.IndexedSlices``, whose rows are gathered.
        average: deprecated; True for Average, False for Sum.
        device_dense, device_sparse: where a tensor, and where slices are reduced.
        compression: how the tensor travels, one of Compression.none, fp16 and bf16 or your own; or
            int8, fp8 and fp8_e5m2, for dense tensors on the CPU by Average or Sum: 8 bits between
            hosts. What is rounded off is lost.
        op: the reduction; None is Average. Of slices, Average or Sum.
        prescale_factor: multiplied to the input, in full precision.
        postscale_factor: multiplied to the result.
        name: what the ranks agree on.
        process_set: the ranks that take part.
        ignore_name_scope: whether only the last part of the node's name counts.

    Returns:
        A tensor of the shape and dtype of ``tensor``; its gradient is allreduced in the same way.
        Or slices with the rows of all ranks, where an index may stand several times.

    Raises:
        UsageError: the arguments are wrong.
        NotImplementedError: slices with another reduction, or with factors.

    Example:
        >>> hvd.allreduce(tf.ones(3), op=hvd.Sum)   # with 4 ranks
        <tf.Tensor: shape=(3,), dtype=float32, numpy=array([4., 4., 4.], dtype=float32)>
    """
    call = call_of(process_set, name, ignore_name_scope)
    reduction = requested_reduction(op, average, prescale_factor, postscale_factor)
    return reduce_tensor(call, tensor, reduction, compression, device_dense, device_sparse)


def allreduce_dense(
    tensor: TensorLike,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """:func:`allreduce` as libraries call it under the name ``mpi_ops._allreduce``: a sum."""
    return allreduce(
        tensor,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


def grouped_allreduce(
    tensors: Sequence[TensorLike],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: CompressorLike = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Sequence[Any]:
    """Reduces several tensors as one operation: they become ready, and fail, together.

    Args:
        tensors: tensors and slices in any mixture; shapes and dtypes may differ from each other,
            not between ranks. An empty list is returned as it is.

    The rest is as in :func:`allreduce`.
    """
    if not tensors:
        return tensors
    call = call_of(process_set, name, ignore_name_scope)
    reduction = requested_reduction(op, average, prescale_factor, postscale_factor)
    return reduce_tensors(call, tensors, reduction, compression, device_dense, device_sparse)


def reduce_tensor(
    call: calls.CollectiveCall,
    tensor: TensorLike,
    reduction: Reduction,
    compression: CompressorLike,
    device_dense: str,
    device_sparse: str,
) -> Any:
    """Run :func:`allreduce` with arguments that have been checked."""
    if isinstance(tensor, tf.IndexedSlices):
        _refuse_slices(compression)
        with placed(device_sparse):
            return sparse.allreduce(call, tensor, reduction)
    with placed(device_dense):
        sent, context = compressed(compression, tf.convert_to_tensor(tensor))
        reduction = quantizing(reduction, compression)
        return compression.decompress(calls.allreduce(call, sent, reduction), context)


def reduce_tensors(
    call: calls.CollectiveCall,
    tensors: Sequence[TensorLike],
    reduction: Reduction,
    compression: CompressorLike,
    device_dense: str,
    device_sparse: str,
) -> list[Any]:
    """Run :func:`grouped_allreduce` with arguments that have been checked."""
    is_sparse = [isinstance(tensor, tf.IndexedSlices) for tensor in tensors]
    slices = [tensor for tensor, apart in zip(tensors, is_sparse, strict=True) if apart]
    dense = [tensor for tensor, apart in zip(tensors, is_sparse, strict=True) if not apart]
    if slices:
        _refuse_slices(compression)
        sparse.check_reduction(reduction)
    reduced_dense, reduced_slices = iter(()), iter(())
    if dense:
        with placed(device_dense):
            reduced_dense = iter(_grouped_dense(call, dense, compression, reduction))
    if slices:
        with placed(device_sparse):
            reduced_slices = iter(sparse.grouped_allreduce(call, slices, reduction))
    return [next(reduced_slices if apart else reduced_dense) for apart in is_sparse]


def reduce_with_errors(
    call: calls.CollectiveCall,
    tensors: Sequence[Any],
    reduction: Reduction,
    compression: CompressorLike,
    device_dense: str,
    errors: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """Reduce dense tensors in 8 bits as one operation, with error feedback.

    Args:
        call, tensors, reduction, compression, device_dense: as of :func:`reduce_tensors`.
        errors: whose they are, then that of each tensor; see :func:`calls.feedback_allreduce`.

    Returns:
        The results, and the errors for the next step.
    """
    with placed(device_dense):
        reduced, kept, rank = calls.feedback_allreduce(
            call, tensors, quantizing(reduction, compression), errors[1:], errors[0]
        )
    return reduced, [rank, *kept]


def _refuse_slices(compression: CompressorLike) -> None:
    refuse_quantizing(compression, "the reduction of tf.IndexedSlices, without sparse_as_dense,")


def _grouped_dense(
    call: calls.CollectiveCall,
    tensors: Sequence[Any],
    compression: CompressorLike,
    reduction: Reduction,
) -> list[Any]:
    pairs = [compressed(compression, tf.convert_to_tensor(tensor)) for tensor in tensors]
    reduction = quantizing(reduction, compression)
    reduced = calls.grouped_allreduce(call, [tensor for tensor, _ in pairs], reduction)
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(reduced, pairs, strict=True)
    ]


def reducescatter(
    tensor: TensorLike,
    device_dense: str = "",
    compression: CompressorLike = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces a tensor over all ranks and leaves each of them its own rows of the result.

    Args:
        tensor: at least one dimension; the same shape on all ranks. Of d rows, each of n ranks gets
            d // n, and the first d % n ranks get one more.
        op: Average or Sum.

    The rest is as in :func:`allreduce`.

    Returns:
        This rank's rows; perhaps none. The gradient is gathered from all ranks.

    Raises:
        tf.errors.InvalidArgumentError: the tensor is a scalar.
        tf.errors.AbortedError: ``op`` is another reduction.
    """
    call = call_of(process_set, name, ignore_name_scope)
    reduction = requested_reduction(op, None, prescale_factor, postscale_factor)
    with placed(device_dense):
        sent, context = compression.compress(tf.convert_to_tensor(tensor))
        return compression.decompress(calls.reducescatter(call, sent, reduction), context)


def grouped_reducescatter(
    tensors: Sequence[TensorLike],
    device_dense: str = "",
    compression: CompressorLike = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> Sequence[Any]:
    """Runs :func:`reducescatter` on several tensors as one operation.

    Args:
        tensors: shapes and dtypes may differ from each other, not between ranks. An empty list is
            returned as it is.
    """
    if not tensors:
        return tensors
    call = call_of(process_set, name, ignore_name_scope)
    reduction = requested_reduction(op, None, prescale_factor, postscale_factor)
    with placed(device_dense):
        pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
        reduced = calls.grouped_reducescatter(call, [tensor for tensor, _ in pairs], reduction)
        return [
            compression.decompress(tensor, context)
            for tensor, (_, context) in zip(reduced, pairs, strict=True)
        ]
