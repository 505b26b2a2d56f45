"""allreduce and reducescatter in all their forms.

Common arguments:
    tensor: dense, contiguous, on the CPU or a GPU; the same shape, dtype and kind of device on all
        ranks. Dtypes are bool, the integer types, float16, bfloat16, float32 and float64.
    name: what the ranks agree on; without one, all ranks must call in the same order.
    op: Average (the default), Sum, Min, Max or Product; Average of integers truncates toward zero.
    prescale_factor, postscale_factor: applied to each input, and to the result.
    process_set: the ranks that take part.
    weight: of this rank's values in an average of a floating type, such as its number of samples:
        sum(weight * value) / sum(weight). A finite number of at least 0; given on all ranks or on
        none. Values of weight 0 do not count, also if they are infinite or NaN; weights that are 0
        on all ranks are an error.
    priority: of asynchronous operations: those with a higher number overtake others, which may be
        in the middle of being executed; need not be the same on all ranks.

Common errors:
    UsageError (a ValueError): the arguments are wrong; only this rank sees it.
    HorovodInternalError: the ranks disagree, a rank was lost, or Horovod was shut down.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

import torch

from horovod._train.call_site import call_site
from horovod._train.compression import compressed, quantizing, refuse_quantizing
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.reduce_op import Average, Sum, requested_reduction
from horovod.torch import autograd, handles
from horovod.torch.calls import AllreduceCall, ReducescatterCall, ReducingCall
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.compression import Compression
from horovod.torch.devices import wait
from horovod.torch.tensors import check_sums, mark_written, memory_of_one, view

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._native import Buffer
    from horovod._rank.group import Group
    from horovod._rank.reduction import Reduction
    from horovod._train.compression import CompressorLike

C = TypeVar("C", bound=ReducingCall)


@outside_of_graphs
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> torch.Tensor:
    """Reduces a tensor over all ranks; the result is the same on each of them.

    Args:
        tensor: any shape and supported dtype, the same on all ranks; left untouched.
        average: deprecated; True for Average, False for Sum.
        name: what the ranks agree on.
        compression: how the tensor travels, one of Compression.none, fp16, bf16, int8, fp8 and
            fp8_e5m2, or your own. The last three are for dense tensors on the CPU by Average or
            Sum; they take effect between hosts only, and what is rounded off here is lost.
        op: the reduction.
        prescale_factor: multiplied to the input.
        postscale_factor: multiplied to the result.
        process_set: the ranks that take part.
        weight: of this rank's values in the average; None counts all ranks alike.

    Returns:
        A tensor of the shape and dtype of ``tensor``. Its gradient is allreduced in the same way,
        with the same weights.

    Raises:
        UsageError: the arguments are wrong.
        HorovodInternalError: the operation failed.

    Example:
        >>> hvd.allreduce(torch.ones(3), op=hvd.Sum)   # with 4 ranks
        tensor([4., 4., 4.])
    """
    source = view(tensor)
    reduction = requested_reduction(op, average, prescale_factor, postscale_factor, weight)
    if compression is not Compression.none or tensor.requires_grad:
        reduction = quantizing(reduction, compression)
        call = _allreduce_call("allreduce", name, process_set, reduction)
        return _run(autograd.allreduce, call, (tensor,), compression)[0]
    # The way of most calls, with nothing that a small tensor would have to pay for.
    if reduction.op > Sum:
        check_sums(reduction.op, (tensor,))
    output = torch.empty_like(tensor)
    group, place = group_of(process_set), view(output)
    keep = (memory_of_one(tensor), memory_of_one(output))
    if tensor.is_cpu:
        group.allreduce_now(source, place, reduction, name, call_site(), keep)
    else:
        _allreduce_on_gpu(group, (source, place), output, reduction, name, keep)
    return output


@outside_of_graphs
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
    priority: int = 0,
) -> int:
    """Starts :func:`allreduce`; :func:`synchronize` returns the reduced tensor.

    Do not change ``tensor`` before that. The result has no gradient.
    """
    reduction = requested_reduction(
        op, average, prescale_factor, postscale_factor, weight, priority
    )
    call = _allreduce_call("allreduce", name, process_set, reduction)
    return handles.start(call, (tensor,), itemgetter(0))


@outside_of_graphs
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> torch.Tensor:
    """Reduces a tensor over all ranks in place and returns it; autograd does not follow."""
    reduction = requested_reduction(op, average, prescale_factor, postscale_factor, weight)
    group, memory = group_of(process_set), view(tensor)
    if reduction.op > Sum:
        check_sums(reduction.op, (tensor,))
    mark_written((tensor,))
    keep = memory_of_one(tensor)
    if tensor.is_cpu:
        group.allreduce_now(memory, memory, reduction, name, call_site(), keep)
    else:
        _allreduce_on_gpu(group, (memory, memory), tensor, reduction, name, keep)
    return tensor


@outside_of_graphs
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
    priority: int = 0,
) -> int:
    """Starts :func:`allreduce_`; :func:`synchronize` returns the same tensor object.

    Neither read nor change ``tensor`` before that.
    """
    reduction = requested_reduction(
        op, average, prescale_factor, postscale_factor, weight, priority
    )
    group, memory = group_of(process_set), view(tensor)
    if reduction.op > Sum:
        check_sums(reduction.op, (tensor,))
    keep = memory_of_one(tensor)
    handle = group.allreduce_later(memory, memory, reduction, name, call_site(), keep)
    mark_written((tensor,))
    return handles.add_written(group, handle, tensor)


@outside_of_graphs
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> list[torch.Tensor]:
    """Reduces several tensors as one operation: they become ready, and fail, together.

    Args:
        tensors: at least one; shapes and dtypes may differ from each other, not between ranks.

    The rest is as in :func:`allreduce`.
    """
    reduction = requested_reduction(op, average, prescale_factor, postscale_factor, weight)
    reduction = quantizing(reduction, compression)
    call = _allreduce_call("grouped_allreduce", name, process_set, reduction)
    return _run(autograd.allreduce, call, tensors, compression)


@outside_of_graphs
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
    priority: int = 0,
) -> int:
    """Starts :func:`grouped_allreduce`; :func:`synchronize` returns a tuple of tensors."""
    reduction = requested_reduction(
        op, average, prescale_factor, postscale_factor, weight, priority
    )
    call = _allreduce_call("grouped_allreduce", name, process_set, reduction)
    return handles.start(call, tuple(tensors))


@outside_of_graphs
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
) -> list[torch.Tensor]:
    """Reduces several tensors in place as one operation and returns them."""
    reduction = requested_reduction(op, average, prescale_factor, postscale_factor, weight)
    call = _allreduce_call("grouped_allreduce", name, process_set, reduction)
    inputs = tuple(tensors)
    wait(call.submit(inputs, inputs, waits_next=True), inputs[0])
    return list(inputs)


@outside_of_graphs
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    weight: float | None = None,
    priority: int = 0,
) -> int:
    """Starts :func:`grouped_allreduce_`; :func:`synchronize` returns them as a tuple."""
    reduction = requested_reduction(
        op, average, prescale_factor, postscale_factor, weight, priority
    )
    call = _allreduce_call("grouped_allreduce", name, process_set, reduction)
    inputs = tuple(tensors)
    return handles.add(call.group, call.submit(inputs, inputs), lambda _: inputs, inputs)


@outside_of_graphs
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks and leaves each of them its own rows of the result.

    Args:
        tensor: at least one dimension; the same shape and dtype on all ranks; left untouched. Of d
            rows, each of n ranks gets d // n, and the first d % n ranks get one more.
        name: what the ranks agree on.
        compression: how the tensor travels.
        op: Average or Sum.
        process_set: the ranks that take part.
        prescale_factor: multiplied to the input.
        postscale_factor: multiplied to the result.

    Returns:
        This rank's rows; perhaps none. The gradient is gathered from all ranks.

    Raises:
        UsageError: the arguments are wrong.
        HorovodInternalError: the operation failed, or ``op`` is another reduction.
    """
    refuse_quantizing(compression, "reducescatter")
    reduction = requested_reduction(op, None, prescale_factor, postscale_factor)
    call = ReducescatterCall(group_of(process_set), name, "reducescatter", call_site(), reduction)
    return _run(autograd.reducescatter, call, (tensor,), compression)[0]


@outside_of_graphs
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts :func:`reducescatter`; :func:`synchronize` returns this rank's rows."""
    reduction = requested_reduction(op, None, prescale_factor, postscale_factor)
    call = ReducescatterCall(group_of(process_set), name, "reducescatter", call_site(), reduction)
    return handles.start(call, (tensor,), itemgetter(0))


@outside_of_graphs
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Runs :func:`reducescatter` on several tensors as one operation.

    Args:
        tensors: at least one; shapes and dtypes may differ from each other, not between ranks.

    The rest is as in :func:`reducescatter`.
    """
    refuse_quantizing(compression, "reducescatter")
    reduction = requested_reduction(op, None, prescale_factor, postscale_factor)
    group = group_of(process_set)
    call = ReducescatterCall(group, name, "grouped_reducescatter", call_site(), reduction)
    return _run(autograd.reducescatter, call, tensors, compression)


@outside_of_graphs
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts :func:`grouped_reducescatter`; :func:`synchronize` returns a tuple of tensors."""
    reduction = requested_reduction(op, None, prescale_factor, postscale_factor)
    group = group_of(process_set)
    call = ReducescatterCall(group, name, "grouped_reducescatter", call_site(), reduction)
    return handles.start(call, tuple(tensors))


def _allreduce_on_gpu(
    group: Group,
    memory: tuple[Buffer, Buffer],
    output: torch.Tensor,
    reduction: Reduction,
    name: str | None,
    keep: object,
) -> None:
    """Reduces the first buffer into the second one, and lets the stream go on behind it."""
    given, taken = memory
    handle = group.allreduce(
        (given,),
        (taken,),
        reduction,
        name=name,
        waits_next=True,
        call_site=call_site(),
        keep=keep,
    )
    wait(handle, output)


def _allreduce_call(
    prefix: str, name: str | None, process_set: ProcessSet, reduction: Reduction
) -> AllreduceCall:
    return AllreduceCall(group_of(process_set), name, prefix, call_site(), reduction)


def _run(
    differentiable: Callable[[C, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]],
    call: C,
    tensors: Sequence[torch.Tensor],
    compression: CompressorLike,
) -> list[torch.Tensor]:
    """Runs a call that autograd follows; the tensors travel compressed."""
    pairs = [compressed(compression, tensor) for tensor in tensors]
    reduced = differentiable(call, tuple(tensor for tensor, _ in pairs))
    return [
        compression.decompress(tensor, context)
        for tensor, (_, context) in zip(reduced, pairs, strict=True)
    ]
