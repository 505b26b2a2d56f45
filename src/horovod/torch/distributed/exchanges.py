"""The operations that move values between ranks without reducing them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from horovod.errors import UsageError
from horovod.torch.distributed.memory import count_of, elements_per_value, movable, restore, rows
from horovod.torch.tensors import memory_of, views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._native import Handle
    from horovod._rank.submit_options import SubmitOptions
    from horovod.torch.distributed.memory import Finish
    from horovod.torch.distributed.submission import CallOptions, Submitter
    from horovod.torch.distributed.work import EngineWork

Tensors = list[torch.Tensor]


@dataclass(slots=True)
class _Exchange:
    """Rows that go to and come from each rank.

    Attributes:
        sources: one tensor with the rows for all ranks, or one for each rank.
        sent: how many rows of the one tensor go to each rank; None for each its tensor.
        targets: the same of the rows that come; empty if none do.
        received: how many rows have to come from each rank; None for what the targets say.
        outputs: the tensors of the caller.
        finish: fills them from the targets; None if those are their memory.
    """

    sources: Tensors
    sent: list[int] | None
    targets: Tensors
    received: list[int] | None
    outputs: Tensors
    finish: Finish | None


def broadcast(submitter: Submitter, tensors: Tensors, options: Any) -> EngineWork:
    """Copy the tensors of the root into those of all ranks.

    Args:
        submitter: of the group.
        tensors: any shapes and dtypes, the same on all ranks.
        options: ``BroadcastOptions``.
    """
    root = submitter.group.ranks[options.rootRank]
    inner, finish = restore(tensors)
    buffers = views(inner)

    def submit(call: SubmitOptions) -> Handle:
        return submitter.group.broadcast(buffers, buffers, root, **call)

    return submitter.start(
        "broadcast", options, submit, tensors, keep=memory_of(inner), finish=finish
    )


def all_gather(
    submitter: Submitter, outputs: Sequence[Tensors], inputs: Tensors, options: Any
) -> EngineWork:
    """Gather tensors of all ranks on all ranks.

    Args:
        submitter: of the group.
        outputs: for each input, the tensors that hold it together: one for each rank, or one with
            the values of all ranks one behind the other.
        inputs: any shapes, the same on all ranks. Where there is one output for each rank, the
            sizes may differ between ranks.
        options: ``AllgatherOptions``.
    """
    sources = [
        _gathered_rows(submitter, parts, tensor)
        for parts, tensor in zip(outputs, inputs, strict=True)
    ]
    flat_outputs = [part for parts in outputs for part in parts]
    inner, finish = restore(flat_outputs)
    size = submitter.group.size
    places = iter(inner)
    targets = [
        place.reshape(-1) if source.dim() == 1 else rows(place, size if len(parts) == 1 else 1)
        for parts, source in zip(outputs, sources, strict=True)
        for _, place in zip(parts, places, strict=False)
    ]

    def submit(call: SubmitOptions) -> Handle:
        return submitter.group.allgather(views(sources), views(targets), **call)

    kept = memory_of(sources, targets)
    return submitter.start("all_gather", options, submit, flat_outputs, keep=kept, finish=finish)


def _gathered_rows(submitter: Submitter, parts: Tensors, tensor: torch.Tensor) -> torch.Tensor:
    """Return an input in the shape that makes ranks with other sizes a mismatch.

    One row for each rank if all sizes are equal; otherwise one row for each element.
    """
    group = submitter.group
    source = movable(tensor)
    counts = [count_of(part) for part in parts]
    if len(counts) == 1 and counts[0] == source.numel() * group.size:
        return rows(source, 1)
    if len(counts) != group.size or counts[group.rank] != source.numel():
        raise UsageError(
            f"all_gather of a tensor of shape {tuple(tensor.shape)} and {tensor.dtype} in a group "
            f"of {group.size} ranks: the outputs have the shapes "
            f"{[tuple(part.shape) for part in parts]}"
        )
    return rows(source, 1) if len(set(counts)) == 1 else source.reshape(-1)


def all_to_all_single(
    submitter: Submitter,
    output: torch.Tensor,
    source: torch.Tensor,
    splits: tuple[list[int], list[int]],
    options: Any,
) -> EngineWork:
    """Send consecutive rows of a tensor to each rank.

    Args:
        submitter: of the group.
        output: the rows received, in rank order.
        source: the rows to send, in rank order.
        splits: how many rows come from and go to each rank; empty lists divide equally.
        options: ``AllToAllOptions``.
    """
    expected, sent = (
        list(given) or _equal_splits(tensor, submitter.group.size)
        for given, tensor in zip(splits, (output, source), strict=True)
    )
    if sum(sent) != _num_rows(source) or sum(expected) != _num_rows(output):
        raise UsageError(
            f"all_to_all_single: the splits {sent} and {expected} do not divide the input of shape "
            f"{tuple(source.shape)} and the output of shape {tuple(output.shape)}"
        )
    row_elements = _row_elements(source if sum(sent) else output)
    inner, finish = restore([output])
    exchange = _Exchange(
        sources=[movable(source).reshape(sum(sent), row_elements)],
        sent=sent,
        targets=[
            inner[0].reshape(
                sum(expected), _row_elements(output) if sum(expected) else row_elements
            )
        ],
        received=expected,
        outputs=[output],
        finish=finish,
    )
    return _alltoall(submitter, "all_to_all_single", exchange, options)


def all_to_all(submitter: Submitter, outputs: Tensors, inputs: Tensors, options: Any) -> EngineWork:
    """Send one tensor to each rank, and receive one from each.

    Args:
        submitter: of the group.
        outputs: one for each rank; the sizes may differ.
        inputs: one for each rank; the sizes may differ.
        options: ``AllToAllOptions``.
    """
    size = submitter.group.size
    if len(outputs) != size or len(inputs) != size:
        raise UsageError(
            f"all_to_all: {len(outputs)} outputs and {len(inputs)} inputs in a group of {size}"
        )
    inner, finish = restore(outputs)
    exchange = _Exchange(
        sources=[movable(tensor).reshape(-1) for tensor in inputs],
        sent=None,
        targets=[tensor.reshape(-1) for tensor in inner],
        received=None,
        outputs=outputs,
        finish=finish,
    )
    return _alltoall(submitter, "all_to_all", exchange, options)


def gather(
    submitter: Submitter, outputs: Sequence[Tensors], inputs: Tensors, options: Any
) -> EngineWork:
    """Gather the tensor of each rank on the root.

    Args:
        submitter: of the group.
        outputs: on the root, one list with a tensor for each rank; else empty.
        inputs: one tensor, of the same shape on all ranks.
        options: ``GatherOptions``.
    """
    group = submitter.group
    is_root = group.rank == options.rootRank
    parts = list(outputs[0]) if is_root else []
    if is_root and len(parts) != group.size:
        raise UsageError(f"gather: {len(parts)} outputs on the root of {group.size} ranks")
    inner, finish = restore(parts)
    exchange = _Exchange(
        sources=[rows(movable(inputs[0]), 1)],
        sent=[int(rank == options.rootRank) for rank in range(group.size)],
        targets=[rows(tensor, 1) for tensor in inner],
        received=[int(is_root)] * group.size,
        outputs=parts,
        finish=finish,
    )
    return _alltoall(submitter, "gather", exchange, options)


def scatter(
    submitter: Submitter, outputs: Tensors, inputs: Sequence[Tensors], options: Any
) -> EngineWork:
    """Send one tensor of the root to each rank.

    Args:
        submitter: of the group.
        outputs: one tensor, of the same shape on all ranks.
        inputs: on the root, one list with a tensor for each rank; else empty.
        options: ``ScatterOptions``.
    """
    group = submitter.group
    is_root = group.rank == options.rootRank
    inner, finish = restore(outputs)
    target = rows(inner[0], 1)
    if is_root and [count_of(part) for part in inputs[0]] != [target.numel()] * group.size:
        raise UsageError(
            f"scatter: give {group.size} tensors of the shape {tuple(outputs[0].shape)}; got "
            f"{[tuple(part.shape) for part in inputs[0]]}"
        )
    exchange = _Exchange(
        sources=[rows(movable(part), 1) for part in inputs[0]] if is_root else [target[:0]],
        sent=None if is_root else [0] * group.size,
        targets=[target],
        received=[int(rank == options.rootRank) for rank in range(group.size)],
        outputs=outputs,
        finish=finish,
    )
    return _alltoall(submitter, "scatter", exchange, options)


def barrier(submitter: Submitter, options: CallOptions, what: str = "barrier") -> EngineWork:
    """Wait for all ranks of the group; operations in flight are not waited for.

    Args:
        submitter: of the group.
        options: ``BarrierOptions``.
        what: the operation, for messages.
    """

    def submit(call: SubmitOptions) -> Handle:
        return submitter.group.barrier(**call)

    return submitter.start(what, options, submit, (), keep=None)


def _alltoall(submitter: Submitter, what: str, exchange: _Exchange, options: Any) -> EngineWork:
    sources, targets = views(exchange.sources), exchange.targets

    def submit(call: SubmitOptions) -> Handle:
        return submitter.group.alltoall(
            sources,
            exchange.sent,
            views(targets) if targets else (),
            exchange.received,
            **call,
        )

    kept = memory_of(exchange.sources, targets)
    return submitter.start(
        what, options, submit, exchange.outputs, keep=kept, finish=exchange.finish
    )


def _num_rows(tensor: torch.Tensor) -> int:
    return tensor.shape[0] if tensor.dim() else 1


def _row_elements(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape[1:]) * elements_per_value(tensor)


def _equal_splits(tensor: torch.Tensor, size: int) -> list[int]:
    count = _num_rows(tensor)
    if count % size != 0:
        raise UsageError(
            f"all_to_all_single: {count} rows cannot be divided equally among {size} ranks"
        )
    return [count // size] * size
