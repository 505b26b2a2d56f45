"""The operations that reduce: in place, to one rank, or to a share for each rank."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _distributed_c10d as c10d

from horovod._native import Buffer
from horovod._rank.reduction import ReduceOp, Reduction
from horovod.errors import UsageError
from horovod.torch.distributed.memory import (
    BITWISE,
    fill,
    flat,
    movable,
    reduction_of,
    restore,
    rows,
)
from horovod.torch.tensors import adopt, check_sums, memory_of, view, views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._native import Handle, NativeArray
    from horovod._rank.submit_options import SubmitOptions
    from horovod.torch.distributed.memory import Finish
    from horovod.torch.distributed.submission import Submitter
    from horovod.torch.distributed.work import EngineWork

Tensors = list[torch.Tensor]


def all_reduce(submitter: Submitter, tensors: Tensors, options: Any) -> EngineWork:
    """Reduce tensors in place on all ranks.

    Args:
        submitter: of the group.
        tensors: any shapes and dtypes, the same on all ranks.
        options: ``AllreduceOptions`` or ``AllreduceCoalescedOptions``.
    """
    if options.reduceOp.op in BITWISE:
        return _reduce_bits(submitter, tensors, options)
    inner, finish = restore(tensors)
    return _allreduce(submitter, "all_reduce", (tensors, inner, inner), options, finish)


def all_reduce_mean(
    submitter: Submitter, tensor: torch.Tensor, array: NativeArray | None
) -> EngineWork:
    """Average a tensor in place over all ranks, as DistributedDataParallel averages gradients.

    Args:
        submitter: of the group.
        tensor: floating-point or complex.
        array: the shared memory that the tensor is in, at an address of its own; None if it is in
            none.
    """
    _check_number(tensor, "all_reduce")
    inner, finish = restore([tensor])
    buffers = views(inner)
    if array is not None:
        buffers = [Buffer(array.address, buffers[0].dtype, buffers[0].shape)]
    size = submitter.group.size
    # To divide by a power of two is exact, so it can follow the sum, which costs less.
    divides_last = size & (size - 1) == 0 and tensor.dtype is not torch.float16
    factors = (1.0, 1.0 / size) if divides_last else (1.0 / size, 1.0)

    def submit(call: SubmitOptions) -> Handle:
        return submitter.group.allreduce(
            buffers, buffers, Reduction(ReduceOp.SUM, *factors), **call
        )

    kept = [*memory_of(inner), array]
    options = c10d.AllreduceOptions()
    return submitter.start("all_reduce", options, submit, [tensor], keep=kept, finish=finish)


def share_memory(submitter: Submitter, num_bytes: int) -> EngineWork:
    """Ask for an array that all ranks of the host see; all ranks of the job do.

    Args:
        submitter: of the group of all ranks.
        num_bytes: the same on all ranks.
    """

    def submit(call: SubmitOptions) -> Handle:
        name, call_site = call["name"], call["call_site"]
        assert name is not None
        return submitter.group.share_memory(
            num_bytes, name=f"{call['prefix']}.{name}", call_site=call_site
        )

    return submitter.start("share_memory", c10d.AllreduceOptions(), submit, (), keep=None)


def reduce(submitter: Submitter, tensors: Tensors, options: Any) -> EngineWork:
    """Reduce tensors in place on the root; those of other ranks stay as they are.

    Args:
        submitter: of the group.
        tensors: any shapes and dtypes, the same on all ranks.
        options: ``ReduceOptions``.
    """
    if submitter.group.rank == options.rootRank:
        inner, finish = restore(tensors)
        return _allreduce(submitter, "reduce", (tensors, inner, inner), options, finish)
    inner = [movable(tensor) for tensor in tensors]
    unused = [torch.empty_like(tensor) for tensor in inner]
    return _allreduce(submitter, "reduce", (tensors, inner, unused), options, None)


def _allreduce(
    submitter: Submitter,
    what: str,
    memory: tuple[Tensors, Tensors, Tensors],
    options: Any,
    finish: Finish | None,
) -> EngineWork:
    """Start an allreduce; ``memory`` are the tensors of the caller, the inputs and outputs."""
    tensors, inputs, outputs = memory
    op, factor = reduction_of(options.reduceOp)
    for tensor in tensors:
        _check_number(tensor, what)
    check_sums(op, tensors)
    sources = views(inputs)
    targets = sources if outputs is inputs else views(outputs)

    def submit(call: SubmitOptions) -> Handle:
        return submitter.group.allreduce(sources, targets, Reduction(op, factor), **call)

    kept = memory_of(inputs) if outputs is inputs else memory_of(inputs, outputs)
    return submitter.start(what, options, submit, tensors, keep=kept, finish=finish)


def _check_number(tensor: torch.Tensor, what: str) -> None:
    """Refuse dtypes that :func:`movable` would turn into bytes, which have other sums."""
    if tensor.dtype.itemsize == 1 and tensor.dtype.is_floating_point:
        raise UsageError(
            f"{what} of a tensor of {tensor.dtype}: the engine does not reduce this dtype; "
            "use tensor.to(torch.bfloat16)"
        )


def _reduce_bits(submitter: Submitter, tensors: Tensors, options: Any) -> EngineWork:
    """Combine the bits of integers: gather the tensors of all ranks, and combine them here."""
    combine = BITWISE[options.reduceOp.op]
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            raise UsageError(f"{options.reduceOp.op} of {tensor.dtype}: only integers have bits")
    inputs = [rows(movable(tensor), 1) for tensor in tensors]

    def submit(call: SubmitOptions) -> Handle:
        return submitter.group.allgather(views(inputs), **call)

    def finish(handle: Handle) -> None:
        for tensor, gathered in zip(tensors, handle.results(), strict=True):
            fill(tensor, functools.reduce(combine, adopt(gathered).unbind(0)))

    return submitter.start(
        "all_reduce", options, submit, tensors, keep=memory_of(inputs), finish=finish
    )


def reduce_scatter_lists(
    submitter: Submitter, outputs: Tensors, inputs: Sequence[Tensors], options: Any
) -> EngineWork:
    """Reduce a list of tensors, one for each rank, and leave each rank its own.

    Args:
        submitter: of the group.
        outputs: the results, one for each list.
        inputs: lists of one tensor for each rank, whose shapes may differ.
        options: ``ReduceScatterOptions``.
    """
    group = submitter.group
    for output, listed in zip(outputs, inputs, strict=True):
        if len(listed) != group.size or listed[group.rank].numel() != output.numel():
            raise UsageError(
                f"reduce_scatter: give {group.size} tensors, and an output of the size of number "
                f"{group.rank}; got {len(listed)} tensors and an output of {tuple(output.shape)}"
            )
    packed = [flat(listed) for listed in inputs]
    equal = all(len({tensor.numel() for tensor in listed}) == 1 for listed in inputs)
    if equal:
        return reduce_scatter(submitter, outputs, packed, options)
    offsets = [sum(t.numel() for t in listed[: group.rank]) for listed in inputs]
    scale = 2 if inputs[0][0].is_complex() else 1
    return _by_allreduce(
        submitter, outputs, packed, [offset * scale for offset in offsets], options
    )


def reduce_scatter(
    submitter: Submitter, outputs: Tensors, inputs: Tensors, options: Any
) -> EngineWork:
    """Reduce tensors and leave each rank an equal share of each, in rank order.

    Args:
        submitter: of the group.
        outputs: one per input, with its elements divided by the number of ranks.
        inputs: any shapes, the same on all ranks.
        options: ``ReduceScatterOptions``.
    """
    group = submitter.group
    op, factor = reduction_of(options.reduceOp)
    sources = [rows(movable(tensor), group.size) for tensor in inputs]
    for output, source in zip(outputs, sources, strict=True):
        _check_number(output, "reduce_scatter")
        if movable(output).numel() != source.shape[1]:
            raise UsageError(
                f"reduce_scatter: the output has the shape {tuple(output.shape)}, but the share "
                f"of one of {group.size} ranks of the input is {source.shape[1]} elements"
            )
    if op.name not in ("SUM", "AVERAGE"):
        offsets = [source.shape[1] * group.rank for source in sources]
        copies = [source.clone() for source in sources]
        return _by_allreduce(submitter, outputs, copies, offsets, options)
    targets, finish = restore(outputs)
    shares = [rows(target, 1) for target in targets]

    def submit(call: SubmitOptions) -> Handle:
        return group.reducescatter(
            views(sources),
            views(shares),
            op=op,
            prescale=factor,
            **call,
        )

    kept = memory_of(sources, shares)
    return submitter.start("reduce_scatter", options, submit, outputs, keep=kept, finish=finish)


def _by_allreduce(
    submitter: Submitter, outputs: Tensors, packed: Tensors, offsets: list[int], options: Any
) -> EngineWork:
    """Reduce copies as a whole and keep the elements from an offset on, as gloo does."""
    op, factor = reduction_of(options.reduceOp)
    check_sums(op, outputs)
    buffers = [view(tensor) for tensor in packed]

    def submit(call: SubmitOptions) -> Handle:
        return submitter.group.allreduce(buffers, buffers, Reduction(op, factor), **call)

    def finish(handle: Handle) -> None:
        del handle
        for output, reduced, offset in zip(outputs, packed, offsets, strict=True):
            count = movable(output).numel()
            fill(output, reduced.reshape(-1)[offset : offset + count])

    kept = memory_of(packed)
    return submitter.start("reduce_scatter", options, submit, outputs, keep=kept, finish=finish)
