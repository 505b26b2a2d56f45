"""Weighted averages and Adasum; see :mod:`collectives` for what a check is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from collectives import FLOATS, data, expect, expect_error, known
from process_sets import even_and_odd

from horovod._rank.reduction import ReduceOp
from horovod.errors import HorovodInternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectives import Api

_TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-12}
# Small values travel with the announcement, large ones by themselves.
_COUNTS = (16, 5000)


def weights_count_as_often_as_they_say(api: Api, rank: int, size: int) -> None:
    weights = [1.0 + 0.5 * r for r in range(size)]
    for dtype in known(api, FLOATS):
        for count in _COUNTS:
            every = [data(r, (count,), dtype, 1, 9) for r in range(size)]
            expected = np.average(every, axis=0, weights=weights)
            tensor = api.tensor(every[rank], dtype)
            weight = weights[rank]
            for got in (
                api.call("allreduce", tensor, weight=weight),
                api.finish(api.start("allreduce", tensor, weight=weight)),
                api.call("grouped_allreduce", [tensor, tensor], weight=weight)[1],
            ):
                expect(api, got, expected, dtype, _TOLERANCE[dtype])


def a_weight_may_be_zero_but_not_all(api: Api, rank: int, size: int) -> None:
    for count in _COUNTS:
        tensor = api.tensor(np.full(count, rank + 3.0), "float32")
        # What has no weight is not read: it may be no number.
        nothing = api.tensor(np.full(count, np.nan if rank % 2 else np.inf), "float32")
        for counts in range(size):
            given, weight = (tensor, 2.0) if rank == counts else (nothing, 0.0)
            got = api.call("allreduce", given, name="w", weight=weight)
            expect(api, got, np.full(count, counts + 3.0), "float32")
        expect_error(HorovodInternalError, lambda t=tensor: api.call("allreduce", t, weight=0.0))


def large_halves_do_not_overflow_on_the_way(api: Api, rank: int, size: int) -> None:
    for count in _COUNTS:
        tensor = api.tensor(np.full(count, 60000.0), "float16")
        got = api.call("allreduce", tensor, weight=1000.0)
        expect(api, got, np.full(count, 60000.0), "float16", _TOLERANCE["float16"])


def weights_that_make_no_sense_are_refused(api: Api, rank: int, size: int) -> None:
    floats = api.tensor(np.ones(3), "float32")
    for weight in (-1.0, float("nan"), float("inf")):
        expect_error(UsageError, lambda w=weight: api.call("allreduce", floats, weight=w))
    expect_error(UsageError, lambda: api.call("allreduce", floats, op=ReduceOp.SUM, weight=1.0))
    expect_error(UsageError, lambda: api.call("allreduce", api.tensor([1], "int32"), weight=1.0))
    if size > 1:
        weight = None if rank == 0 else 1.0
        error = expect_error(
            HorovodInternalError, lambda: api.call("allreduce", floats, name="some", weight=weight)
        )
        assert "weight" in str(error)
    expect(api, api.call("allreduce", floats, name="some", weight=1.0), np.ones(3), "float32")


def adasum_adds_what_is_orthogonal(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, FLOATS):
        for length in (1, 700):
            every = np.zeros((size, size, length))
            for r in range(size):
                every[r, r] = r + 1
            tensor = api.tensor(every[rank], dtype)
            got = api.call("allreduce", tensor, op=ReduceOp.ADASUM)
            expect(api, got, every.sum(axis=0), dtype, _TOLERANCE[dtype])
            expect(api, tensor, every[rank], dtype)


def adasum_averages_what_is_parallel(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, FLOATS):
        for count in (1, 33, 5000):
            values = data(3, (count,), dtype, 1, 9)
            tensor = api.tensor(values, dtype)
            got = api.call("allreduce", tensor, op=ReduceOp.ADASUM, name="parallel")
            expect(api, got, values, dtype, _TOLERANCE[dtype])
        if size == 2:
            got = api.call("allreduce", api.tensor(values * (1 + rank), dtype), op=ReduceOp.ADASUM)
            expect(api, got, 1.5 * values, dtype, _TOLERANCE[dtype])


def adasum_takes_each_tensor_of_a_group_by_itself(api: Api, rank: int, size: int) -> None:
    orthogonal = np.zeros(size * 50)
    orthogonal[rank * 50 : rank * 50 + 50] = 1.0
    tensors = [
        api.tensor(orthogonal, "float32"),
        api.tensor(np.full(20, 3.0), "float32"),
        api.tensor(np.zeros(4), "float32"),
        api.tensor(np.full(7, 2.0), "float64"),
    ]
    got = api.call("grouped_allreduce", tensors, op=ReduceOp.ADASUM)
    for each, (expected, dtype) in zip(
        got,
        (
            (np.ones(size * 50), "float32"),
            (np.full(20, 3.0), "float32"),
            (np.zeros(4), "float32"),
            (np.full(7, 2.0), "float64"),
        ),
        strict=True,
    ):
        expect(api, each, expected, dtype, 1e-5)


def adasum_stays_accurate_at_the_ends_of_a_type(api: Api, rank: int, size: int) -> None:
    for dtype, tiny in (("float16", 2.0**-13), ("float32", 2.0**-100), ("float64", 2.0**-500)):
        for magnitude in (tiny, 1.0, 1.0 / tiny if dtype != "float16" else 2.0**12):
            got = api.call(
                "allreduce", api.tensor(np.full(4, magnitude), dtype), op=ReduceOp.ADASUM
            )
            # Below a norm that the method ignores, vectors are added.
            allowed = (magnitude, magnitude * size)
            assert np.isclose(api.values(got)[:, None], allowed, rtol=2e-3).any(axis=1).all()


def adasum_works_in_a_process_set_and_needs_floats(api: Api, rank: int, size: int) -> None:
    integers = api.tensor(np.ones(3), "int32")
    expect_error(UsageError, lambda: api.call("allreduce", integers, op=ReduceOp.ADASUM))
    if size == 1:
        return
    with even_and_odd(api, rank, size) as (mine, _, ranks):
        values = np.zeros(size)
        values[rank] = 2.0
        got = api.call(
            "allreduce", api.tensor(values, "float32"), op=ReduceOp.ADASUM, process_set=mine
        )
        expected = np.zeros(size)
        expected[ranks] = 2.0
        expect(api, got, expected, "float32", 1e-5)


def adasum_ignores_ranks_that_have_joined(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    for first in range(size):
        if rank != first:
            for count in _COUNTS:
                tensor = api.tensor(np.full(count, 3.0), "float32")
                got = api.call("allreduce", tensor, name="x", op=ReduceOp.ADASUM)
                expect(api, got, np.full(count, 3.0), "float32", 1e-5)
        api.call("join")


CHECKS: tuple[Callable[[Api, int, int], None], ...] = (
    weights_count_as_often_as_they_say,
    a_weight_may_be_zero_but_not_all,
    large_halves_do_not_overflow_on_the_way,
    weights_that_make_no_sense_are_refused,
    adasum_adds_what_is_orthogonal,
    adasum_averages_what_is_parallel,
    adasum_takes_each_tensor_of_a_group_by_itself,
    adasum_stays_accurate_at_the_ends_of_a_type,
    adasum_works_in_a_process_set_and_needs_floats,
    adasum_ignores_ranks_that_have_joined,
)
