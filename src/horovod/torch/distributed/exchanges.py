"""The operations that move values between ranks without reducing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from horovod.errors import UsageError
from horovod.torch.distributed.memory import count_of, fill_all, flat, movable, restore, rows
from horovod.torch.distributed.parts import Parts
from horovod.torch.tensors import adopt, memory_of, view, views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._native import Handle
    from horovod._rank.group import SubmitOptions
    from horovod.torch.distributed.submission import CallOptions, Submitter
    from horovod.torch.distributed.work import EngineWork

Tensors = list[torch.Tensor]

_MIN_IN_PLACE = 32768  # bytes of a rank
_MAX_IN_PLACE = 16  # ranks


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
    slots = _slots_of(submitter, outputs, sources)
    if slots is not None:
        return _gather_in_place(submitter, slots, sources, outputs, options)
    buffers = views(sources)

    def submit(call: SubmitOptions) -> Handle:
        return submitter.group.allgather(buffers, **call)

    def finish(handle: Handle) -> None:
        for parts, array in zip(outputs, handle.results(), strict=True):
            fill_all(parts, adopt(array), "all_gather")

    flat_outputs = [part for parts in outputs for part in parts]
    kept = memory_of(sources)
    return submitter.start("all_gather", options, submit, flat_outputs, keep=kept, finish=finish)


def _slots_of(
    submitter: Submitter, outputs: Sequence[Tensors], sources: Tensors
) -> list[Tensors] | None:
    """Return where the tensor of each rank goes, if each rank should send its own there.

    On one host, a broadcast from each rank into the outputs takes half the time of an allgather
    whose results have to be copied there. Small tensors are faster in one operation.

    Returns:
        For each rank, one slot per input, of the shape of the input; None to gather and copy.
    """
    group = submitter.group
    num_bytes = sum(source.numel() * source.element_size() for source in sources)
    if num_bytes < _MIN_IN_PLACE or not group.engine.all_local or group.size > _MAX_IN_PLACE:
        return None
    slots: list[Tensors] = [[] for _ in range(group.size)]
    for parts, source in zip(outputs, sources, strict=True):
        if source.dim() != 2 or not all(part.is_contiguous() for part in parts):
            return None
        whole = [movable(part).reshape(-1) for part in parts]
        split = torch.split(whole[0], source.numel()) if len(parts) == 1 else whole
        for listed, slot in zip(slots, split, strict=True):
            listed.append(slot.view(source.shape))
    return slots


def _gather_in_place(
    submitter: Submitter,
    slots: list[Tensors],
    sources: Tensors,
    outputs: Sequence[Tensors],
    options: Any,
) -> EngineWork:
    group = submitter.group
    for slot, source in zip(slots[group.rank], sources, strict=True):
        if slot.data_ptr() != source.data_ptr():
            slot.copy_(source)
    buffers = [views(listed) for listed in slots]

    def submit(call: SubmitOptions) -> Handle:
        name, waits_next = call["name"], call["waits_next"]
        handles = []
        for rank, root in enumerate(group.ranks):
            call["name"] = f"{name}.{rank}"
            call["waits_next"] = waits_next and rank == group.size - 1
            handles.append(group.broadcast(buffers[rank], buffers[rank], root, **call))
        return cast("Handle", Parts(handles))

    kept = memory_of(*slots)
    flat_outputs = [part for parts in outputs for part in parts]
    return submitter.start("all_gather", options, submit, flat_outputs, keep=kept)


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
    inner = movable(source)
    row_elements = inner.numel() // sum(sent) if sum(sent) else _row_elements(output)
    return _alltoall(
        submitter,
        "all_to_all_single",
        inner.reshape(sum(sent), row_elements),
        (sent, expected),
        [output],
        options,
    )


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
    splits = [count_of(tensor) for tensor in inputs], [count_of(tensor) for tensor in outputs]
    packed = flat(inputs)
    return _alltoall(submitter, "all_to_all", packed, splits, outputs, options)


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
    sent = [int(rank == options.rootRank) for rank in range(group.size)]
    splits = sent, [int(is_root)] * group.size
    source = rows(movable(inputs[0]), 1)
    return _alltoall(submitter, "gather", source, splits, parts, options)


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
    target = movable(outputs[0])
    if is_root:
        if [count_of(part) for part in inputs[0]] != [target.numel()] * group.size:
            raise UsageError(
                f"scatter: give {group.size} tensors of the shape {tuple(outputs[0].shape)}; got "
                f"{[tuple(part.shape) for part in inputs[0]]}"
            )
        source = rows(flat(inputs[0]), group.size)
    else:
        source = target.new_empty((0, target.numel()))
    received = [int(rank == options.rootRank) for rank in range(group.size)]
    splits = [int(is_root)] * group.size, received
    return _alltoall(submitter, "scatter", source, splits, outputs, options)


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


def _alltoall(
    submitter: Submitter,
    what: str,
    source: torch.Tensor,
    splits: tuple[list[int], list[int]],
    outputs: Tensors,
    options: Any,
) -> EngineWork:
    """Exchange rows; ``splits`` are those sent and those that have to arrive."""
    sent, expected = splits

    def submit(call: SubmitOptions) -> Handle:
        return submitter.group.alltoall((view(source),), sent, **call)

    def finish(handle: Handle) -> None:
        received = handle.received_splits()
        if received != expected:
            raise UsageError(
                f"{what}: this rank received {received} rows from the ranks of its group, but "
                f"expected {expected}; the ranks gave different sizes or another root"
            )
        if outputs:
            fill_all(outputs, adopt(handle.results()[0]), what)

    kept = memory_of((source,))
    return submitter.start(what, options, submit, outputs, keep=kept, finish=finish)


def _num_rows(tensor: torch.Tensor) -> int:
    return tensor.shape[0] if tensor.dim() else 1


def _row_elements(tensor: torch.Tensor) -> int:
    return count_of(tensor) // max(1, _num_rows(tensor))


def _equal_splits(tensor: torch.Tensor, size: int) -> list[int]:
    count = _num_rows(tensor)
    if count % size != 0:
        raise UsageError(
            f"all_to_all_single: {count} rows cannot be divided equally among {size} ranks"
        )
    return [count // size] * size
