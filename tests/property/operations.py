"""Collectives as values: what the ranks submit, how it is run, and what must come out.

An :class:`Operation` says everything about one collective of a process set, on all of its ranks, in
few words, so that a failing example can be read. The numbers of its ranks are set ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from arrays import Array, Placed, carrier, check_equal, copy_of, make_values, widen
from reference import Reduction, reduce

from horovod._rank import group as process_sets
from horovod._rank.reduction import ReduceOp
from horovod.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._native import Handle
    from horovod._rank.group import Group


class _Patience:
    """How long to wait for the end of an operation."""

    seconds = 20.0
    # Of the examples that hypothesis tries once it knows one that does not end.
    seconds_then = 2.0


BY_ROWS = ("allgather", "alltoall", "reducescatter")


@dataclass(frozen=True, repr=False)
class Operation:
    """One collective.

    Attributes:
        kind: allreduce, reducescatter, allgather, broadcast, alltoall or barrier.
        tensors: the dtype and shape of each; what ``rows`` says takes the place of dimension 0.
        op, prescale, postscale: of a reduction.
        weights: of each rank in an average, or None.
        root: set rank of a broadcast's root.
        rows: allgather: how many each rank gives, for each tensor.
        splits: alltoall: how many rows each rank sends to each; None divides them equally.
        unsent: alltoall: rows of each rank that nobody gets.
        in_place: whether outputs are the inputs, where there are outputs.
        named: whether ranks find each other's by name, or by the order of submission.
        waits_next: whether each rank submits it like a caller who waits at once; () is nobody.
        flavour: of the values, see :func:`arrays.make_values`.
        offset: bytes by which arrays miss a round address.
        seed: of the values.
    """

    kind: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    op: ReduceOp = ReduceOp.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    weights: tuple[float, ...] | None = None
    root: int = 0
    rows: tuple[tuple[int, ...], ...] = ()
    splits: tuple[tuple[int, ...], ...] | None = None
    unsent: tuple[int, ...] = ()
    in_place: bool = False
    named: bool = True
    waits_next: tuple[bool, ...] = ()
    flavour: str = "small"
    offset: int = 0
    seed: int = 0

    def __repr__(self) -> str:
        """Only what is not the default."""
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name != "kind" and getattr(self, field.name) != field.default
        ]
        return f"Operation({', '.join([repr(self.kind), *shown])})"

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """What hypothesis prints."""
        printer.text(repr(self))

    @property
    def reduces(self) -> bool:
        return self.kind in ("allreduce", "reducescatter")

    def shape_of(self, tensor: int, rank: int) -> tuple[int, ...]:
        """The shape that a rank gives."""
        shape = self.tensors[tensor][1]
        if self.kind == "allgather":
            return (self.rows[tensor][rank], *shape[1:])
        if self.kind == "alltoall" and self.splits is not None:
            return (sum(self.splits[rank]) + self.unsent[rank], *shape[1:])
        return shape

    def input_of(self, tensor: int, rank: int) -> Array:
        """The bits that a rank gives."""
        seed = (self.seed, tensor, rank)
        dtype = self.tensors[tensor][0]
        return make_values(dtype, self.shape_of(tensor, rank), self.flavour, seed)


def await_end(handle: Handle, what: object) -> None:
    """Waits for an operation.

    Args:
        handle: the operation.
        what: for the message.

    Raises:
        AssertionError: it did not end in time.
        HorovodInternalError: it failed.
    """
    if not handle.wait(_Patience.seconds):
        _Patience.seconds = _Patience.seconds_then
        raise AssertionError(f"{what} did not end")


class Started:
    """An operation that one rank has submitted.

    Args:
        operation: what to submit.
        group: this rank's view of the process set.
        name: for the other ranks to know it; ignored if it has none.
    """

    def __init__(self, operation: Operation, group: Group, name: str) -> None:
        self._operation = operation
        self._rank = group.rank
        self._inputs = [
            Placed(operation.input_of(tensor, self._rank), dtype, operation.offset)
            for tensor, (dtype, _) in enumerate(operation.tensors)
        ]
        self._outputs = self._make_outputs(group)
        self._handle = self._submit(group, name)

    def _make_outputs(self, group: Group) -> list[Placed]:
        operation = self._operation
        if operation.kind not in ("allreduce", "broadcast", "reducescatter"):
            return []
        if operation.in_place and operation.kind != "reducescatter":
            return self._inputs
        outputs = []
        for tensor, (dtype, shape) in enumerate(operation.tensors):
            if operation.kind == "reducescatter":
                shape = (group.rows_of(shape[0]), *shape[1:])
            empty = np.zeros(shape, carrier(dtype))
            outputs.append(Placed(empty, dtype, operation.offset + tensor))
        return outputs

    def _submit(self, group: Group, name: str) -> Handle:
        operation = self._operation
        if operation.kind == "barrier":
            return group.barrier()
        inputs = [array.buffer for array in self._inputs]
        outputs = [array.buffer for array in self._outputs]
        options: Any = {
            "name": name if operation.named else None,
            "waits_next": bool(operation.waits_next) and operation.waits_next[self._rank],
            "call_site": "property.py:1",
            "keep": (self._inputs, self._outputs),
        }
        factors = operation.prescale, operation.postscale
        if operation.kind == "allreduce":
            weights = operation.weights
            weight = None if weights is None else weights[self._rank]
            reduction = process_sets.Reduction(operation.op, *factors, weight)
            return group.allreduce(inputs, outputs, reduction, **options)
        if operation.kind == "reducescatter":
            pre, post = factors
            options |= {"op": operation.op, "prescale": pre, "postscale": post}
            return group.reducescatter(inputs, outputs, **options)
        if operation.kind == "allgather":
            return group.allgather(inputs, **options)
        if operation.kind == "broadcast":
            return group.broadcast(inputs, outputs, group.ranks[operation.root], **options)
        splits = None if operation.splits is None else operation.splits[self._rank]
        return group.alltoall(inputs, splits, **options)

    def finish(self) -> Outcome:
        """Waits for the end; an error of this operation alone is an outcome too."""
        error = None
        try:
            await_end(self._handle, self._operation)
        except MismatchError as mismatch:
            error = mismatch
        for array in (*self._inputs, *self._outputs):
            array.check_guards()
        if error is not None:
            return Outcome(error=error)
        if self._outputs is not self._inputs:
            for tensor, array in enumerate(self._inputs):
                given = self._operation.input_of(tensor, self._rank)
                assert array.bits.tobytes() == given.tobytes(), (
                    f"{self._operation}: input {tensor} has changed"
                )
        if self._operation.kind in ("allgather", "alltoall"):
            results = [copy_of(array) for array in self._handle.results()]
            return Outcome(results, self._handle.received_splits())
        return Outcome([array.bits for array in self._outputs])


@dataclass(frozen=True)
class Outcome:
    """What an operation gave one rank.

    Attributes:
        results: the bits of each tensor.
        received_splits: of an alltoall.
        error: instead of all that.
    """

    results: Sequence[Array] = ()
    received_splits: Sequence[int] = ()
    error: MismatchError | None = None


def check(
    operation: Operation,
    rank: int,
    outcome: Outcome,
    size: int,
    present: Sequence[int] | None = None,
    num_averaged: int | None = None,
) -> None:
    """Compares what a rank got with what NumPy says.

    Args:
        operation: what all ranks submitted.
        rank: of the set.
        outcome: what this rank got.
        size: of the set.
        present: the set ranks that have not joined, in rising order; None is all.
        num_averaged: what Average divides by; None is the size of the set.
    """
    present = range(size) if present is None else present
    if operation.kind == "broadcast" and operation.root not in present:
        assert outcome.error is not None, f"{operation}: its root has joined, and nobody minds"
        return
    if outcome.error is not None:
        raise outcome.error
    if operation.kind == "alltoall":
        _check_received_splits(operation, rank, outcome, size, present)
    for tensor, (dtype, _) in enumerate(operation.tensors):
        got = widen(outcome.results[tensor], dtype)
        what = f"rank {rank}, tensor {tensor} of {operation}"
        if operation.reduces:
            how = _reduction(operation, present, num_averaged or size)
            expected, bound = reduce(dtype, _reduced_inputs(operation, tensor, size, present), how)
            if operation.kind == "reducescatter":
                rows = _rows_of(expected.shape[0], rank, size)
                expected, bound = expected[rows], None if bound is None else bound[rows]
        else:
            bits = _moved(operation, tensor, rank, size, present)
            expected, bound = widen(bits, dtype), None
        check_equal(got, expected, bound, what)


def _reduction(operation: Operation, present: Sequence[int], num_averaged: int) -> Reduction:
    weights = operation.weights
    return Reduction(
        operation.op,
        operation.prescale,
        operation.postscale,
        num_averaged,
        None if weights is None else tuple(weights[rank] for rank in present),
    )


def _reduced_inputs(
    operation: Operation, tensor: int, size: int, present: Sequence[int]
) -> list[Array]:
    """Only Adasum, which makes a tree over the ranks, notices ranks that give zeros."""
    if operation.op is not ReduceOp.ADASUM:
        return [operation.input_of(tensor, rank) for rank in present]
    inputs = [operation.input_of(tensor, rank) for rank in range(size)]
    return [x if rank in present else np.zeros_like(x) for rank, x in enumerate(inputs)]


def _rows_of(num_rows: int, rank: int, size: int) -> slice:
    base, rest = divmod(num_rows, size)
    start = rank * base + min(rank, rest)
    return slice(start, start + base + (1 if rank < rest else 0))


def _moved(
    operation: Operation, tensor: int, rank: int, size: int, present: Sequence[int]
) -> Array:
    if operation.kind == "broadcast":
        return operation.input_of(tensor, operation.root)
    if operation.kind == "allgather":
        return np.concatenate([operation.input_of(tensor, r) for r in present])
    blocks = []
    for sender in present:
        splits = _splits_of(operation, sender, size)
        first = sum(splits[:rank])
        blocks.append(operation.input_of(tensor, sender)[first : first + splits[rank]])
    return np.concatenate(blocks)


def _splits_of(operation: Operation, sender: int, size: int) -> Sequence[int]:
    if operation.splits is not None:
        return operation.splits[sender]
    return [operation.tensors[0][1][0] // size] * size


def _check_received_splits(
    operation: Operation, rank: int, outcome: Outcome, size: int, present: Sequence[int]
) -> None:
    expected = [
        _splits_of(operation, sender, size)[rank] if sender in present else 0
        for sender in range(size)
    ]
    assert list(outcome.received_splits) == expected, f"rank {rank} of {operation}"
