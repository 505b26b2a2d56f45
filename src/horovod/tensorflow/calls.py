"""Collective calls on TensorFlow tensors, without compression: attributes, names, where they run.

Functions take tensors and the public number of a process set; they return what the operation does.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import tensorflow as tf

from horovod import _native
from horovod._rank import context
from horovod._rank.reduction import Quantized, QuantizedFormat, ReduceOp, Reduction
from horovod._train.process_set import number_of
from horovod.tensorflow.call_sites import call_site
from horovod.tensorflow.native_ops import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._train.process_set import ProcessSet
    from horovod._train.structure import Structure
    from horovod.tensorflow.interface_types import TensorLike

    Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """The arguments that every collective needs.

    Attributes:
        process_set_id: the public number of the set.
        name: what the caller named it; None takes a number in eager mode, and in a graph the name
            of the operation and of its first tensor.
        ignore_name_scope: whether only the last part of a node's name counts.
        call_site: ``file:line`` of the caller.
        job: the number of the context in this process that the call works for.
        waits_briefly: whether the thread that runs it in a graph waits for it for some milliseconds
            and drives the engine meanwhile. For what a step has nothing to do beside.
        structure: what the ranks compare in addition to shapes and dtypes; None for nothing.
    """

    process_set_id: int = 0
    name: str | None = None
    ignore_name_scope: bool = False
    call_site: str = ""
    job: int = 0
    waits_briefly: bool = False
    structure: Structure | None = None

    def attributes(self, op_type: str, tensors: Sequence[TensorLike] = ()) -> dict[str, Any]:
        """The common attributes of the operation, with the name of its node in a graph."""
        common = {
            "job": self.job,
            "process_set_id": self.process_set_id,
            "ignore_name_scope": self.ignore_name_scope,
            "call_site": self._place(),
        }
        if tf.executing_eagerly():
            return {**common, "eager": True, "tensor_name": self.name or ""}
        name = _node_name(op_type, self.name) if self.name else _default_name(op_type, tensors)
        return {**common, "name": name, "waits_briefly": self.waits_briefly}

    def _place(self) -> str:
        return f"{self.call_site} with {self.structure.text}" if self.structure else self.call_site


def _attributes_of(reduction: Reduction) -> dict[str, Any]:
    """Return a reduction's attributes; the factors as text, as TensorFlow's would be float32."""
    return {
        "reduce_op": int(reduction.op),
        "prescale_factor": repr(float(reduction.prescale)),
        "postscale_factor": repr(float(reduction.postscale)),
        "quantization": 0 if reduction.quantized is None else int(reduction.quantized.format),
    }


def call_of(
    process_set: ProcessSet, name: str | None, ignore_name_scope: bool = False
) -> CollectiveCall:
    """The call of a public function, whose caller is recorded.

    Raises:
        UsageError: ``process_set`` is none, or is not registered; the name cannot be sent.
    """
    if name is not None:
        _native.check_name(name)
    number = number_of(process_set)
    return CollectiveCall(number, name, ignore_name_scope, call_site(), context.current().number)


def _interruptible(function: Function) -> Function:
    """Turns the end of an eager operation by Ctrl-C into what Ctrl-C means."""

    @functools.wraps(function)
    def call_it(*args: Any) -> Any:
        try:
            return function(*args)
        except tf.errors.CancelledError as error:
            if "was interrupted by a signal" in error.message:
                raise KeyboardInterrupt from error
            raise

    return cast("Function", call_it)


def gradient_call(op: tf.Operation) -> CollectiveCall:
    """The call of the gradient of an operation, which may be in flight again meanwhile."""
    name = op.get_attr("tensor_name").decode()
    return CollectiveCall(
        op.get_attr("process_set_id"),
        f"{name}.gradient" if name and tf.executing_eagerly() else None,
        op.get_attr("ignore_name_scope"),
        op.get_attr("call_site").decode(),
        op.get_attr("job"),
    )


def renamed(call: CollectiveCall, suffix: str) -> CollectiveCall:
    """Return the call under another name; one without a name stays without."""
    return call if call.name is None else replace(call, name=f"{call.name}{suffix}")


def reduction_of(op: tf.Operation) -> Reduction:
    """The reduction of an operation, from its attributes."""
    wire = op.get_attr("quantization")
    return Reduction(
        ReduceOp(op.get_attr("reduce_op")),
        float(op.get_attr("prescale_factor")),
        float(op.get_attr("postscale_factor")),
        quantized=Quantized(QuantizedFormat(wire)) if wire else None,
    )


@_interruptible
def allreduce(call: CollectiveCall, tensor: TensorLike, reduction: Reduction) -> Any:
    """Reduces a tensor; any shape, the same on all ranks."""
    attributes = call.attributes("HorovodAllreduce", (tensor,))
    return ops.horovod_allreduce(tensor=tensor, **_attributes_of(reduction), **attributes)


@_interruptible
def grouped_allreduce(
    call: CollectiveCall, tensors: Sequence[TensorLike], reduction: Reduction
) -> list[Any]:
    """Reduces several tensors as one operation."""
    attributes = call.attributes("HorovodGroupedAllreduce", tensors)
    given = list(tensors)
    if call.structure is not None:
        given.append(tf.zeros(call.structure.mark, given[0].dtype))
    results = ops.horovod_grouped_allreduce(
        tensors=given, **_attributes_of(reduction), **attributes
    )
    return list(results[: len(tensors)])


@_interruptible
def feedback_allreduce(
    call: CollectiveCall,
    tensors: Sequence[TensorLike],
    reduction: Reduction,
    errors: Sequence[TensorLike],
    kept_by: TensorLike,
) -> tuple[list[Any], list[Any], Any]:
    """Reduce tensors as one operation, with the errors of what is quantized.

    Args:
        call: the common arguments.
        tensors: what is reduced.
        reduction: how.
        errors: of each tensor from earlier reductions, float32 of its shape.
        kept_by: the global rank whose these are, an int32 scalar; another rank takes zeros.

    Returns:
        The sums, the errors, and the global rank of this process.
    """
    attributes = call.attributes("HorovodFeedbackAllreduce", tensors)
    given = list(tensors)
    if call.structure is not None:
        given.append(tf.zeros(call.structure.mark, given[0].dtype))
    kept, rank, sums = ops.horovod_feedback_allreduce(
        residuals=list(errors), kept_by=kept_by, tensors=given,
        **_attributes_of(reduction), **attributes,
    )  # fmt: skip
    return list(sums[: len(tensors)]), list(kept), rank


@_interruptible
def reducescatter(call: CollectiveCall, tensor: TensorLike, reduction: Reduction) -> Any:
    """Reduces a tensor and keeps this rank's rows of it."""
    attributes = call.attributes("HorovodReducescatter", (tensor,))
    return ops.horovod_reducescatter(tensor=tensor, **_attributes_of(reduction), **attributes)


@_interruptible
def grouped_reducescatter(
    call: CollectiveCall, tensors: Sequence[TensorLike], reduction: Reduction
) -> list[Any]:
    """Reduces several tensors as one operation and keeps this rank's rows of them."""
    attributes = call.attributes("HorovodGroupedReducescatter", tensors)
    return list(
        ops.horovod_grouped_reducescatter(
            tensors=list(tensors), **_attributes_of(reduction), **attributes
        )
    )


@_interruptible
def allgather(call: CollectiveCall, tensor: TensorLike) -> Any:
    """Joins the tensors of all ranks along dimension 0."""
    return ops.horovod_allgather(tensor=tensor, **call.attributes("HorovodAllgather", (tensor,)))


@_interruptible
def grouped_allgather(call: CollectiveCall, tensors: Sequence[TensorLike]) -> list[Any]:
    """Joins several tensors as one operation."""
    attributes = call.attributes("HorovodGroupedAllgather", tensors)
    return list(ops.horovod_grouped_allgather(tensors=list(tensors), **attributes))


@_interruptible
def broadcast(call: CollectiveCall, tensor: TensorLike, root_rank: int) -> Any:
    """Copies the root's tensor to all ranks."""
    attributes = call.attributes("HorovodBroadcast", (tensor,))
    return ops.horovod_broadcast(tensor=tensor, root_rank=root_rank, **attributes)


@_interruptible
def grouped_broadcast(
    call: CollectiveCall, tensors: Sequence[TensorLike], root_rank: int
) -> list[Any]:
    """Copies several tensors of the root as one operation."""
    attributes = call.attributes("HorovodGroupedBroadcast", tensors)
    return list(
        ops.horovod_grouped_broadcast(tensors=list(tensors), root_rank=root_rank, **attributes)
    )


@_interruptible
def alltoall(
    call: CollectiveCall, tensor: TensorLike, splits: TensorLike | None
) -> tuple[Any, Any]:
    """Sends rows to each rank; returns the rows received, and how many came from each rank."""
    attributes = call.attributes("HorovodAlltoall", (tensor,))
    output, received = ops.horovod_alltoall(
        tensor=tensor,
        splits=tf.zeros((0,), tf.int32) if splits is None else splits,
        equal_splits=splits is None,
        **attributes,
    )
    return output, received


@_interruptible
def barrier(call: CollectiveCall) -> Any:
    """Ends when all ranks of the set have reached it."""
    return ops.horovod_barrier(**call.attributes("HorovodBarrier"))


@_interruptible
def join(call: CollectiveCall) -> Any:
    """Ends when all ranks of the set have joined; the global rank that came last."""
    return ops.horovod_join(**call.attributes("HorovodJoin"))


def _node_name(op_type: str, name: str) -> str:
    """The caller's name as a graph allows it."""
    allowed = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name)
    return allowed if re.match(r"[A-Za-z0-9.]", allowed) else f"{op_type}_{allowed}"


def _default_name(op_type: str, tensors: Sequence[Any]) -> str:
    ends = tensors if len(tensors) < 2 else (tensors[0], tensors[-1])
    names = [re.sub(r"[^A-Za-z0-9_]", "_", _name_of(tensor)) for tensor in ends]
    return "_".join([op_type, *filter(None, names)])


def _name_of(tensor: Any) -> str:
    """The name of a tensor of a graph; one that a graph takes from outside has none."""
    return "" if isinstance(tensor, tf.__internal__.EagerTensor) else str(tensor.name)
