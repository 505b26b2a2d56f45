"""Handles, groups and barriers of every adapter; see :mod:`collectives` for what a check is."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from collectives import expect, expect_error, known
from process_sets import even_and_odd

from horovod._rank.reduction import ReduceOp
from horovod.errors import HorovodInternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectives import Api

_DEADLINE_S = 60.0


def _await_poll(api: Api, handle: Any) -> None:
    """Asks until the operation is done; it must get there without being waited for."""
    deadline_s = time.monotonic() + _DEADLINE_S
    pause = threading.Event()
    while not api.call("poll", handle):
        assert time.monotonic() < deadline_s, "an operation that nobody waits for does not end"
        pause.wait(0.001)


def a_handle_says_when_its_operation_is_done(api: Api, rank: int, size: int) -> None:
    for count in (3, 5000):
        tensor = api.tensor(np.ones(count), "float32")
        if rank == 0:
            handle = api.start("allreduce", tensor, name="polled", op=ReduceOp.SUM)
            # The others start it only behind the barrier.
            assert size == 1 or not api.call("poll", handle)
            api.call("barrier")
        else:
            api.call("barrier")
            handle = api.start("allreduce", tensor, name="polled", op=ReduceOp.SUM)
        _await_poll(api, handle)
        expect(api, api.finish(handle), np.full(count, size), "float32")


def a_handle_is_used_up_by_synchronize(api: Api, rank: int, size: int) -> None:
    tensor = api.tensor([1], "int32")
    handle = api.start("allreduce", tensor, op=ReduceOp.SUM)
    later = api.start("broadcast", tensor, 0)
    assert later > handle > 0
    expect(api, api.finish(handle), np.array([size]), "int32")
    expect(api, api.finish(later), np.array([1]), "int32")
    assert api.finish(handle) is None
    expect_error(ValueError, lambda: api.call("poll", handle))
    unknown = handle + 1_000_000
    assert api.finish(unknown) is None
    assert str(unknown) in str(expect_error(ValueError, lambda: api.call("poll", unknown)))


def a_failed_operation_is_done_and_raises_once(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    handle = api.start("allreduce", api.tensor(np.ones(3 + rank % 2), "float32"), name="failed")
    _await_poll(api, handle)
    expect_error(HorovodInternalError, lambda: api.finish(handle))
    assert api.finish(handle) is None
    expect_error(ValueError, lambda: api.call("poll", handle))


def handles_can_be_awaited_in_any_order(api: Api, rank: int, size: int) -> None:
    handles = [
        api.start("allreduce", api.tensor(np.full(n + 1, n), "int32"), op=ReduceOp.SUM)
        for n in range(30)
    ]
    order = np.random.default_rng(rank).permutation(30)
    for n in order:
        expect(api, api.finish(handles[n]), np.full(n + 1, n * size), "int32")


def each_operation_returns_its_kind(api: Api, rank: int, size: int) -> None:
    tensor = api.tensor(np.ones(size), "float32")
    for name in ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter"):
        assert isinstance(api.call(name, [tensor, tensor]), list), name
        got = api.finish(api.start(name, [tensor, tensor]))
        assert isinstance(got, tuple), name
        assert len(got) == 2
    # A pair, with or without splits.
    output, received = api.finish(api.start("alltoall", tensor))
    expect(api, output, np.ones(size), "float32")
    assert list(api.values(received)) == [1] * size
    assert not isinstance(api.call("alltoall", tensor), tuple)


def operations_in_place_return_the_tensor_itself(api: Api, rank: int, size: int) -> None:
    for count in (3, 5000):
        for run in (api.call, lambda *args, **kwargs: api.finish(api.start(*args, **kwargs))):
            tensor = api.tensor(np.full(count, rank), "float32")
            assert run("broadcast_", tensor, size - 1) is tensor
            expect(api, tensor, np.full(count, size - 1), "float32")
            assert run("broadcast", tensor, 0) is not tensor
            total = np.full(count, size * (size - 1))
            assert run("allreduce_", tensor, op=ReduceOp.SUM) is tensor
            expect(api, tensor, total, "float32")
            group = [api.tensor(np.full(n, rank), "float32") for n in (count, 2)]
            got = run("grouped_allreduce_", group, op=ReduceOp.MAX)
            assert all(a is b for a, b in zip(got, group, strict=True))
            for each, n in zip(group, (count, 2), strict=True):
                expect(api, each, np.full(n, size - 1), "float32")


def groups_may_hold_anything_but_nothing(api: Api, rank: int, size: int) -> None:
    kinds = [
        ("float32", (3,)),
        ("int8", ()),
        ("bfloat16", (2, 0)),
        ("float32", (5000,)),
        ("bool", (4,)),
    ]
    kinds = [(dtype, shape) for dtype, shape in kinds if known(api, (dtype,))]
    tensors = [api.tensor(np.ones(shape), dtype) for dtype, shape in kinds]
    for op in (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.PRODUCT):
        got = api.call("grouped_allreduce", tensors, name="mixed", op=op)
        for each, (dtype, shape) in zip(got, kinds, strict=True):
            value = size if op is ReduceOp.SUM and dtype != "bool" else 1
            expect(api, each, np.full(shape, value), dtype)
    for name in ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter"):
        expect_error(UsageError, lambda name=name: api.call(name, []))


def groups_of_different_length_are_an_error(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    tensor = api.tensor(np.ones(3), "float32")
    for name in ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter"):
        expect_error(
            HorovodInternalError,
            lambda name=name: api.call(name, [tensor] * (1 + rank % 2), name="length"),
        )
        assert len(api.call(name, [tensor] * 2, name="length")) == 2


def a_barrier_ends_when_all_have_come(api: Api, rank: int, size: int) -> None:
    for _ in range(5):
        came_s = time.monotonic()
        api.call("barrier")
        _check_times(api, came_s, time.monotonic(), {})
    if size == 1:
        return
    with even_and_odd(api, rank, size) as (mine, _, _ranks):
        came_s = time.monotonic()
        api.call("barrier", process_set=mine)
        _check_times(api, came_s, time.monotonic(), {"process_set": mine})


def _check_times(api: Api, came_s: float, went_s: float, where: dict[str, Any]) -> None:
    """Nobody left before the last one had come; the clock is one of the host."""
    times = api.values(api.call("allgather", api.tensor([[came_s, went_s]], "float64"), **where))
    assert times[:, 0].max() <= times[:, 1].min()


def a_barrier_does_not_wait_for_operations(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    tensor = api.tensor(np.ones(5000), "float32")
    handles = []
    if rank != 0:
        handles = [
            api.start("allreduce", tensor, name="slow", op=ReduceOp.SUM),
            api.start("allgather", tensor, name="slow"),
        ]
    # Rank 0 has started neither.
    for _ in range(3):
        api.call("barrier")
    if rank == 0:
        handles = [
            api.start("allreduce", tensor, name="slow", op=ReduceOp.SUM),
            api.start("allgather", tensor, name="slow"),
        ]
    expect(api, api.finish(handles[0]), np.full(5000, size), "float32")
    expect(api, api.finish(handles[1]), np.ones(5000 * size), "float32")


CHECKS: tuple[Callable[[Api, int, int], None], ...] = (
    a_handle_says_when_its_operation_is_done,
    a_handle_is_used_up_by_synchronize,
    a_failed_operation_is_done_and_raises_once,
    handles_can_be_awaited_in_any_order,
    each_operation_returns_its_kind,
    operations_in_place_return_the_tensor_itself,
    groups_may_hold_anything_but_nothing,
    groups_of_different_length_are_an_error,
    a_barrier_ends_when_all_have_come,
    a_barrier_does_not_wait_for_operations,
)
