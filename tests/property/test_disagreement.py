"""Ranks that submit different things under one name all get the same error, and go on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operations import Operation, Started, check
from profiles import examples
from strategies import MOVING, SETTINGS, Settings, operations

from horovod._rank.reduction import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import DrawFn
    from worlds import Worlds


def _with_tensor(operation: Operation, dtype: str, shape: tuple[int, ...]) -> Operation:
    return replace(operation, tensors=((dtype, shape), *operation.tensors[1:]))


def _other_dtype(operation: Operation) -> Operation:
    dtype, shape = operation.tensors[0]
    return _with_tensor(operation, "float64" if dtype == "float32" else "float32", shape)


def _other_shape(operation: Operation) -> Operation:
    dtype, shape = operation.tensors[0]
    return _with_tensor(operation, dtype, (*shape, 1))


def _other_op(operation: Operation) -> Operation:
    other = ReduceOp.SUM if operation.op is ReduceOp.AVERAGE else ReduceOp.AVERAGE
    return replace(operation, op=other, weights=None)


def _changes(operation: Operation, size: int) -> list[Callable[[Operation], Operation]]:
    """What makes another operation of one that the engine must not take for the same."""
    changes = [_other_dtype, _other_shape]
    if operation.reduces:
        changes.append(_other_op)
        changes.append(lambda it: replace(it, prescale=it.prescale + 1.0))
        changes.append(lambda it: replace(it, postscale=it.postscale + 1.0))
    if operation.kind == "broadcast":
        changes.append(lambda it: replace(it, root=(it.root + 1) % size))
    if operation.kind != "alltoall":
        changes.append(lambda it: replace(it, tensors=it.tensors * 2, rows=it.rows * 2))
    return changes


@dataclass(frozen=True)
class Disagreement:
    """One rank submits something else.

    Attributes:
        size: of the job.
        settings: of its engines.
        agreed: what most ranks submit, and later all.
        other: what one rank submits.
        rank: the one.
        before, after: how often all ranks agree before and after that.
    """

    size: int
    settings: Settings
    agreed: Operation
    other: Operation
    rank: int
    before: int
    after: int


@st.composite
def disagreements(draw: DrawFn) -> Disagreement:
    """Any collective, and any difference that matters."""
    size = draw(st.integers(2, 4))
    agreed = draw(operations(size, MOVING))
    other = draw(st.sampled_from(_changes(agreed, size)))(agreed)
    if other.op is ReduceOp.ADASUM or other.weights is not None:
        # These take floating types only, and say so before anything is sent.
        other = replace(other, tensors=tuple(("float32", shape) for _, shape in other.tensors))
    return Disagreement(
        size,
        draw(SETTINGS),
        agreed,
        other if other != agreed else _other_shape(agreed),
        draw(st.integers(0, size - 1)),
        draw(st.integers(0, 2)),
        draw(st.integers(0, 2)),
    )


@pytest.mark.slow
@examples()
@given(disagreements())
def test_a_disagreement_ends_one_operation(worlds: Worlds, disagreement: Disagreement) -> None:
    it = disagreement
    ranks = worlds.get(it.size, it.settings)

    def body(rank: int) -> tuple[list[Any], str]:
        group = ranks.groups[rank]
        agreed = [Started(it.agreed, group, "x").finish() for _ in range(it.before)]
        mine = it.other if rank == it.rank else it.agreed
        outcome = Started(mine, group, "x").finish()
        agreed += [Started(it.agreed, group, "x").finish() for _ in range(it.after)]
        return agreed, str(outcome.error)

    results = ranks.run(body)
    for rank, (agreed, _) in enumerate(results):
        for outcome in agreed:
            check(it.agreed, rank, outcome, it.size)
    (message,) = {message for _, message in results}
    for rank in range(it.size):
        assert f"rank {rank}" in message, message
    assert "property.py:1" in message
