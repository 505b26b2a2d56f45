"""Gradients of the collectives, registered with TensorFlow.

They are made of differentiable collectives themselves, so second derivatives work too. Integer
tensors of a group have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import tensorflow as tf

from horovod._rank.reduction import ReduceOp, Reduction
from horovod.tensorflow import calls, rank_ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod.tensorflow.calls import CollectiveCall

    Gradients = list[Any]
    GradientFunction = TypeVar("GradientFunction", bound=Callable[..., Any])


def _gradient_of(op_type: str) -> Callable[[GradientFunction], GradientFunction]:
    return cast("Callable[[GradientFunction], GradientFunction]", tf.RegisterGradient(op_type))


def _of_floats(
    op: Any, gradients: Sequence[Any], compute: Callable[[list[int], list[Any]], list[Any]]
) -> Gradients:
    """Computes the gradients of what can have one; ``compute`` gets their places as well."""
    places = [i for i, gradient in enumerate(gradients) if op.inputs[i].dtype.is_floating]
    results: Gradients = [None] * len(gradients)
    if places:
        for i, result in zip(places, compute(places, [gradients[i] for i in places]), strict=True):
            results[i] = result
    return results


@_gradient_of("HorovodAllreduce")
def _allreduce(op: Any, gradient: Any) -> Any:
    """Return the same allreduce of the incoming gradient."""
    return calls.allreduce(
        calls.gradient_call(op), tf.convert_to_tensor(gradient), calls.reduction_of(op)
    )


@_gradient_of("HorovodGroupedAllreduce")
def _grouped_allreduce(op: Any, *gradients: Any) -> Gradients:
    def compute(_: list[int], own: list[Any]) -> list[Any]:
        return calls.grouped_allreduce(calls.gradient_call(op), own, calls.reduction_of(op))

    return _of_floats(op, gradients, compute)


@_gradient_of("HorovodFeedbackAllreduce")
def _feedback_allreduce(op: Any, *gradients: Any) -> Gradients:
    """Return the same allreduce of the incoming gradients, without errors."""
    first = op.get_attr("num_residuals") + 1
    own = [tf.convert_to_tensor(gradient) for gradient in gradients[first:]]
    reduced = calls.grouped_allreduce(calls.gradient_call(op), own, calls.reduction_of(op))
    return [*[None] * first, *reduced]


def _scaled(op: Any, gradient: Any) -> Any:
    """Apply the factors of a reducescatter to its gradient, besides summing or averaging."""
    reduction = calls.reduction_of(op)
    factor = reduction.prescale * reduction.postscale
    scaled = gradient * tf.cast(factor, gradient.dtype)
    if reduction.op is ReduceOp.SUM:
        size = rank_ops.size_op(op.get_attr("process_set_id"), job=op.get_attr("job"))
        scaled *= tf.cast(size, gradient.dtype)
    return scaled


@_gradient_of("HorovodReducescatter")
def _reducescatter(op: Any, gradient: Any) -> Any:
    return calls.allgather(calls.gradient_call(op), _scaled(op, gradient))


@_gradient_of("HorovodGroupedReducescatter")
def _grouped_reducescatter(op: Any, *gradients: Any) -> Gradients:
    def compute(_: list[int], own: list[Any]) -> list[Any]:
        scaled = [_scaled(op, gradient) for gradient in own]
        return calls.grouped_allgather(calls.gradient_call(op), scaled)

    return _of_floats(op, gradients, compute)


def _own_rows(call: CollectiveCall, inputs: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """This rank's rows of each gradient: those behind the rows of the ranks before it."""
    counts = tf.stack([tf.shape(tensor, out_type=tf.int64)[0] for tensor in inputs])
    every = tf.reshape(calls.allgather(calls.renamed(call, ".rows"), counts), (-1, len(inputs)))
    starts = tf.reduce_sum(every[: rank_ops.set_rank_op(call.process_set_id, call.job)], axis=0)
    return [gradient[starts[i] : starts[i] + counts[i]] for i, gradient in enumerate(gradients)]


@_gradient_of("HorovodAllgather")
def _allgather(op: Any, gradient: Any) -> Any:
    """This rank's rows of the averaged incoming gradient."""
    call = calls.gradient_call(op)
    averaged = calls.allreduce(call, tf.convert_to_tensor(gradient), Reduction())
    return _own_rows(call, op.inputs, [averaged])[0]


@_gradient_of("HorovodGroupedAllgather")
def _grouped_allgather(op: Any, *gradients: Any) -> Gradients:
    def compute(places: list[int], own: list[Any]) -> list[Any]:
        call = calls.gradient_call(op)
        averaged = calls.grouped_allreduce(call, own, Reduction())
        return _own_rows(call, [op.inputs[i] for i in places], averaged)

    return _of_floats(op, gradients, compute)


def _on_root(op: Any, gradient: Any) -> Any:
    """The gradient on the root, zero elsewhere: the others' inputs have no influence."""
    is_root = tf.equal(rank_ops.rank_op(job=op.get_attr("job")), op.get_attr("root_rank"))
    return tf.where(is_root, gradient, tf.zeros_like(gradient))


@_gradient_of("HorovodBroadcast")
def _broadcast(op: Any, gradient: Any) -> Any:
    averaged = calls.allreduce(calls.gradient_call(op), tf.convert_to_tensor(gradient), Reduction())
    return _on_root(op, averaged)


@_gradient_of("HorovodGroupedBroadcast")
def _grouped_broadcast(op: Any, *gradients: Any) -> Gradients:
    def compute(_: list[int], own: list[Any]) -> list[Any]:
        averaged = calls.grouped_allreduce(calls.gradient_call(op), own, Reduction())
        return [_on_root(op, gradient) for gradient in averaged]

    return _of_floats(op, gradients, compute)


@_gradient_of("HorovodAlltoall")
def _alltoall(op: Any, gradient: Any, _: Any) -> Gradients:
    """Sends the gradient of each row back; rows that were not sent have no influence."""
    sent, _received = calls.alltoall(
        calls.gradient_call(op), tf.convert_to_tensor(gradient), op.outputs[1]
    )
    shape = tf.shape(op.inputs[0])
    missing = tf.concat(([shape[0] - tf.shape(sent)[0]], shape[1:]), axis=0)
    return [tf.concat((sent, tf.zeros(missing, sent.dtype)), axis=0), None]


for _name in ("Barrier", "Join"):
    tf.no_gradient(f"Horovod{_name}")
