"""What every adapter's collectives must do, each behavior stated once and for any framework.

A check is a function ``check(api, rank, size)`` that runs on every rank at the same time. Values
are small integers, which every dtype holds exactly, so that only averages are rounded.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from horovod._rank.reduction import ReduceOp
from horovod.errors import HorovodInternalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + SIGNED + UNSIGNED
ALL = ("bool", *NUMBERS)

SHAPES = ((), (0,), (1,), (17,), (17, 17), (5, 0, 3), (3, 17, 5))

Values = Any  # a numpy array of float64 or int64; the type would say no more
Check = "Callable[[Api, int, int], None]"


class Api(Protocol):
    """What a framework's test supplies. Tensors are opaque; values are numpy arrays.

    Attributes:
        abilities: of ``reduced``, some of :data:`gradients.ABILITIES`.
        interface: the module of the adapter, for what takes no tensors.
    """

    abilities: tuple[str, ...]
    interface: Any

    def tensor(self, values: Values, dtype: str) -> Any:
        """Makes a tensor."""

    def values(self, tensor: Any) -> Values:
        """The values of a tensor as float64, or int64 for integers and bool."""

    def dtype(self, tensor: Any) -> str:
        """The name of a tensor's dtype."""

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls the public synchronous function of that name."""

    def start(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        """Starts the asynchronous form of the function."""

    def finish(self, handle: Any) -> Any:
        """Waits for it and returns its result."""

    def gradient(
        self, function: Callable[[Any], Any], values: Values, weight: Callable[[Values], Values]
    ) -> Values:
        """The gradient of ``sum(weight(y) * y)`` with ``y = function(x)`` at the float32 ``x``."""

    def reduced(
        self, passes: list[dict[str, Values]], weights: list[float] | None, is_mean: bool
    ) -> dict[str, Values]:
        """What an optimizer of all ranks steps by: gradients of several passes, by name."""


def known(api: Api, dtypes: Sequence[str]) -> tuple[str, ...]:
    """Those that the framework has; a view of one that lacks some says so."""
    lacking = getattr(api, "lacking_dtypes", ())
    return tuple(dtype for dtype in dtypes if dtype not in lacking)


def data(rank: int, shape: Sequence[int], dtype: str, low: int = -9, high: int = 9) -> Values:
    """Values of one rank that all ranks can compute."""
    generator = np.random.default_rng((rank, *shape))
    if dtype == "bool":
        return generator.integers(0, 2, shape)
    return generator.integers(0 if dtype in UNSIGNED else low, high + 1, shape)


def expect(api: Api, tensor: Any, values: Values, dtype: str, tolerance: float = 0.0) -> None:
    got = api.values(tensor)
    assert api.dtype(tensor) == dtype
    assert got.shape == np.shape(values), f"{got.shape} instead of {np.shape(values)} for {dtype}"
    np.testing.assert_allclose(got, values, rtol=tolerance, atol=0.0, err_msg=f"{dtype}")


def expect_error(
    kinds: type[BaseException] | tuple[type[BaseException], ...], function: Callable[[], Any]
) -> BaseException:
    try:
        function()
    except kinds as error:
        return error
    raise AssertionError(f"no {kinds} was raised")


# Averages are computed in float32 (half types) or float64 and rounded once.
_ROUNDING = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-15}


def allreduce_of_all_dtypes_and_shapes(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, ALL):
        for shape in SHAPES:
            every = [data(r, shape, dtype) for r in range(size)]
            tensor = api.tensor(every[rank], dtype)
            summed = np.sum(every, axis=0)
            expected = np.minimum(summed, 1) if dtype == "bool" else summed
            expect(api, api.call("allreduce", tensor, op=ReduceOp.SUM), expected, dtype)
            expect(api, tensor, every[rank], dtype)


def allreduce_averages(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, FLOATS):
        for shape in SHAPES:
            every = [data(r, shape, dtype) for r in range(size)]
            got = api.call("allreduce", api.tensor(every[rank], dtype))
            expect(api, got, np.mean(every, axis=0), dtype, _ROUNDING[dtype])


def average_of_integers_truncates_towards_zero(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, SIGNED + UNSIGNED):
        every = [data(r, (101,), dtype) for r in range(size)]
        got = api.call("allreduce", api.tensor(every[rank], dtype), op=ReduceOp.AVERAGE)
        expect(api, got, np.trunc(np.sum(every, axis=0) / size), dtype)


def allreduce_takes_minimum_maximum_product(api: Api, rank: int, size: int) -> None:
    reductions = (
        (ReduceOp.MIN, np.minimum.reduce),
        (ReduceOp.MAX, np.maximum.reduce),
        (ReduceOp.PRODUCT, np.multiply.reduce),
    )
    for dtype in known(api, ALL):
        for op, reduction in reductions:
            every = [data(r, (4, 33), dtype, -3, 3) for r in range(size)]
            got = api.call("allreduce", api.tensor(every[rank], dtype), op=op)
            expect(api, got, reduction(every), dtype)


def allreduce_scales_before_and_after(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, FLOATS):
        every = [data(r, (50,), dtype) for r in range(size)]
        got = api.call(
            "allreduce",
            api.tensor(every[rank], dtype),
            op=ReduceOp.SUM,
            prescale_factor=0.5,
            postscale_factor=4.0,
        )
        expect(api, got, np.sum(every, axis=0) * 2.0, dtype)
    for dtype in known(api, SIGNED):
        every = [data(r, (50,), dtype) for r in range(size)]
        got = api.call(
            "allreduce", api.tensor(every[rank], dtype), op=ReduceOp.SUM, prescale_factor=0.5
        )
        expect(api, got, np.sum(np.trunc(np.multiply(every, 0.5)), axis=0), dtype)


def allreduce_gives_the_same_bits_on_all_ranks(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, FLOATS):
        values = np.random.default_rng(rank).standard_normal(10001)
        reduced = api.call("allreduce", api.tensor(values, dtype))
        gathered = api.values(api.call("allgather", reduced)).reshape(size, -1)
        assert (gathered == gathered[0]).all(), dtype


def large_tensors_are_reduced_and_gathered(api: Api, rank: int, size: int) -> None:
    count = 300_007
    every = [(np.arange(count) + 7 * r) % 13 for r in range(size)]
    tensor = api.tensor(every[rank], "float32")
    expect(api, api.call("allreduce", tensor, op=ReduceOp.SUM), np.sum(every, axis=0), "float32")
    expect(api, api.call("allgather", tensor), np.concatenate(every), "float32")
    expect(api, api.call("broadcast", tensor, size - 1), every[-1], "float32")


def grouped_allreduce_keeps_order_shapes_and_dtypes(api: Api, rank: int, size: int) -> None:
    kinds = (
        ("float32", (3,)),
        ("int64", (2, 2)),
        ("float16", ()),
        ("float32", (0,)),
        ("bool", (5,)),
    )
    every = [[data(r, shape, dtype) for dtype, shape in kinds] for r in range(size)]
    tensors = [api.tensor(v, dtype) for v, (dtype, _) in zip(every[rank], kinds, strict=True)]
    got = api.call("grouped_allreduce", tensors, op=ReduceOp.MAX)
    for index, (dtype, _) in enumerate(kinds):
        expect(api, got[index], np.max([v[index] for v in every], axis=0), dtype)


def allgather_joins_unequal_parts(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, ALL):
        for tail in ((), (3,), (2, 0), (2, 4)):
            every = [data(r, ((r * 5) % 3, *tail), dtype) for r in range(size)]
            got = api.call("allgather", api.tensor(every[rank], dtype))
            expect(api, got, np.concatenate(every), dtype)


def grouped_allgather_keeps_order(api: Api, rank: int, size: int) -> None:
    kinds = (("float32", (3,)), ("int32", (2, 2)), ("uint8", (0, 4)))
    every = [[data(r, shape, dtype) for dtype, shape in kinds] for r in range(size)]
    tensors = [api.tensor(v, dtype) for v, (dtype, _) in zip(every[rank], kinds, strict=True)]
    got = api.call("grouped_allgather", tensors)
    for index, (dtype, _) in enumerate(kinds):
        expect(api, got[index], np.concatenate([v[index] for v in every]), dtype)


def broadcast_copies_from_every_root(api: Api, rank: int, size: int) -> None:
    for root in range(size):
        # Each root with all dtypes and all shapes; which of them meet changes with the root.
        for index, dtype in enumerate(known(api, ALL)):
            shape = SHAPES[(index + root) % len(SHAPES)]
            own = data(rank, shape, dtype)
            tensor = api.tensor(own, dtype)
            got = api.call("broadcast", tensor, root)
            expect(api, got, data(root, shape, dtype), dtype)
            expect(api, tensor, own, dtype)


def alltoall_sends_what_the_splits_say(api: Api, rank: int, size: int) -> None:
    # Rank r sends (r + i) % 3 rows to rank i; the values tell sender, receiver and row.
    def block(sender: int, receiver: int) -> Values:
        rows = (sender + receiver) % 3
        return np.array([[sender, receiver, row] for row in range(rows)]).reshape(rows, 3)

    for dtype in known(api, NUMBERS):
        sent = np.concatenate([block(rank, i) for i in range(size)] + [np.full((2, 3), 99)])
        splits = [(rank + i) % 3 for i in range(size)]
        got, received = api.call("alltoall", api.tensor(sent, dtype), splits)
        expect(api, got, np.concatenate([block(r, rank) for r in range(size)]), dtype)
        assert list(api.values(received)) == [(r + rank) % 3 for r in range(size)]
        assert api.dtype(received) == "int32"


def alltoall_counts_more_rows_than_int32_holds(api: Api, rank: int, size: int) -> None:
    num_rows = 2**31 + 5
    sent = api.tensor(np.empty((num_rows, 0), np.float32), "float32")  # takes no memory
    splits = [num_rows if i == (rank + 1) % size else 0 for i in range(size)]
    try:
        got, received = api.call("alltoall", sent, splits)
    except UsageError as error:
        refusal = str(error)
        assert f"{num_rows} rows to one rank, but counts are int32" in refusal
    else:
        assert tuple(got.shape) == (num_rows, 0)
        expected = [num_rows if r == (rank - 1) % size else 0 for r in range(size)]
        assert list(api.values(received)) == expected


def alltoall_divides_equally_without_splits(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, ALL):
        every = [data(r, (2 * size, 3), dtype) for r in range(size)]
        got = api.call("alltoall", api.tensor(every[rank], dtype))
        expect(api, got, np.concatenate([v[2 * rank : 2 * rank + 2] for v in every]), dtype)


def _rows(num_rows: int, rank: int, size: int) -> slice:
    base, rest = divmod(num_rows, size)
    start = rank * base + min(rank, rest)
    return slice(start, start + base + (1 if rank < rest else 0))


def reducescatter_leaves_own_rows(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, NUMBERS):
        for shape in ((0,), (1,), (17,), (4, 5), (2, 0)):
            every = [data(r, shape, dtype) for r in range(size)]
            tensor = api.tensor(every[rank], dtype)
            own = np.sum(every, axis=0)[_rows(shape[0], rank, size)]
            expect(api, api.call("reducescatter", tensor, op=ReduceOp.SUM), own, dtype)
            expect(api, tensor, every[rank], dtype)


def reducescatter_averages_and_scales(api: Api, rank: int, size: int) -> None:
    every = [data(r, (7, 2), "float64") for r in range(size)]
    own = _rows(7, rank, size)
    got = api.call(
        "reducescatter",
        api.tensor(every[rank], "float64"),
        prescale_factor=2.0,
        postscale_factor=0.25,
    )
    expect(api, got, np.mean(every, axis=0)[own] * 0.5, "float64", 1e-15)


def grouped_reducescatter_keeps_order(api: Api, rank: int, size: int) -> None:
    shapes = ((5,), (2, 3))
    every = [[data(r, shape, "int32") for shape in shapes] for r in range(size)]
    tensors = [api.tensor(v, "int32") for v in every[rank]]
    got = api.call("grouped_reducescatter", tensors, op=ReduceOp.SUM)
    for index, shape in enumerate(shapes):
        summed = np.sum([v[index] for v in every], axis=0)
        expect(api, got[index], summed[_rows(shape[0], rank, size)], "int32")


def named_operations_match_in_any_order(api: Api, rank: int, size: int) -> None:
    order = list(range(20))
    if rank % 2:
        order.reverse()
    handles = {}
    for number in order:
        tensor = api.tensor(np.full(number + 1, rank + number), "float32")
        handles[number] = api.start("allreduce", tensor, name=f"t{number}", op=ReduceOp.SUM)
    for number, handle in handles.items():
        total = size * (size - 1) // 2 + size * number
        expect(api, api.finish(handle), np.full(number + 1, total), "float32")


def operations_of_all_kinds_run_together(api: Api, rank: int, size: int) -> None:
    tensor = api.tensor(np.arange(size) + rank, "int64")
    for _ in range(3):
        handles = [
            api.start("allreduce", tensor, op=ReduceOp.SUM),
            api.start("allgather", tensor),
            api.start("broadcast", tensor, size - 1),
            api.start("reducescatter", tensor, op=ReduceOp.SUM),
            api.start("alltoall", tensor),
        ]
        api.call("barrier")
        results = [api.finish(handle) for handle in handles]
        total = np.arange(size) * size + size * (size - 1) // 2
        expect(api, results[0], total, "int64")
        expect(api, results[1], np.concatenate([np.arange(size) + r for r in range(size)]), "int64")
        expect(api, results[2], np.arange(size) + size - 1, "int64")
        expect(api, results[3], total[rank : rank + 1], "int64")
        expect(api, results[4][0], np.arange(size) + rank, "int64")


def gradients_flow_through_every_operation(api: Api, rank: int, size: int) -> None:
    ones = np.ones(2 * size)

    def gradient(name: str, *args: Any, **kwargs: Any) -> Values:
        def function(x: Any) -> Any:
            result = api.call(name, x, *args, **kwargs)
            return result[0] if isinstance(result, tuple) else result

        return api.gradient(function, ones, np.ones_like)

    for name, kwargs, expected in (
        ("allreduce", {"op": ReduceOp.SUM}, float(size)),
        ("allreduce", {"op": ReduceOp.AVERAGE}, 1.0),
        ("allreduce", {"op": ReduceOp.SUM, "prescale_factor": 3.0}, 3.0 * size),
        ("allgather", {}, 1.0),
        ("alltoall", {}, 1.0),
        ("alltoall", {"splits": [2] * size}, 1.0),
        ("reducescatter", {"op": ReduceOp.SUM}, float(size)),
        ("reducescatter", {"op": ReduceOp.AVERAGE}, 1.0),
        ("reducescatter", {"op": ReduceOp.AVERAGE, "postscale_factor": 2.0}, 2.0),
    ):
        np.testing.assert_allclose(gradient(name, **kwargs), ones * expected, err_msg=name)
    for root in range(size):
        got = api.gradient(
            lambda x, root=root: api.call("broadcast", x, root),
            ones,
            lambda y: np.full_like(y, rank + 1.0),
        )
        np.testing.assert_allclose(got, ones * ((size + 1) / 2 if rank == root else 0.0))
    # One row per rank is sent, the other rows have no influence.
    np.testing.assert_allclose(
        gradient("alltoall", splits=[1] * size), np.repeat([1.0, 0.0], size), err_msg="alltoall"
    )


def gradient_of_allgather_is_that_of_the_own_rows(api: Api, rank: int, size: int) -> None:
    rows = [(3 * r + 1) % 4 for r in range(size)]

    def weight(gathered: Values) -> Values:
        return np.repeat(np.arange(size), rows).reshape(gathered.shape)

    got = api.gradient(lambda x: api.call("allgather", x), np.zeros(rows[rank]), weight)
    np.testing.assert_allclose(got, np.full(rows[rank], float(rank)))


def disagreement_is_an_error_on_all_ranks(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    odd = rank % 2

    def ones(*shape: int, dtype: str = "float32") -> Any:
        return api.tensor(np.ones(shape), dtype)

    calls: tuple[Callable[[], Any], ...] = (
        lambda: api.call("allreduce", ones(17 + odd)),
        lambda: api.call("allreduce", ones(6, 2) if odd else ones(3, 4)),
        lambda: api.call("allreduce", ones(12) if odd else ones(3, 4)),
        lambda: api.call("allreduce", ones(4, dtype="int32" if odd else "float32")),
        lambda: api.call("allreduce", ones(4), op=ReduceOp.SUM if odd else ReduceOp.AVERAGE),
        lambda: api.call("allreduce", ones(4), op=ReduceOp.ADASUM if odd else ReduceOp.AVERAGE),
        lambda: api.call("allreduce", ones(4), prescale_factor=1.0 + odd),
        lambda: api.call("allreduce", ones(4), postscale_factor=1.0 + odd),
        lambda: api.call("allgather", ones(4, 2 + odd)),
        lambda: api.call("allgather", ones(2, 2) if odd else ones(4)),
        lambda: api.call("allgather", ones(4, dtype="int32" if odd else "float32")),
        lambda: api.call("broadcast", ones(4 + odd), 0),
        lambda: api.call("broadcast", ones(4, dtype="int32" if odd else "float32"), 0),
        lambda: api.call("broadcast", ones(4), odd),
        lambda: api.call("alltoall", ones(size, 2 + odd)),
        lambda: api.call("alltoall", ones(size, 2) if odd else ones(2 * size)),
        lambda: api.call("alltoall", ones(size, dtype="int32" if odd else "float32")),
        lambda: api.call("reducescatter", ones(size, 2 + odd)),
        lambda: api.call("reducescatter", ones(size, dtype="int32" if odd else "float32")),
        # The sum is the average times the size, so the rows would be plausible.
        lambda: api.call("reducescatter", ones(4), op=ReduceOp.SUM if odd else ReduceOp.AVERAGE),
        lambda: api.call("reducescatter", ones(4), prescale_factor=1.0 + odd),
    )
    for call in calls:
        message = str(expect_error(HorovodInternalError, call))
        assert "rank 0" in message
        assert "rank 1" in message
    # Other operations go on, and the name is free again.
    for _ in range(2):
        expect_error(
            HorovodInternalError, lambda: api.call("allreduce", ones(1 + odd), name="disagreed")
        )
        expect(api, api.call("allreduce", ones(3), name="disagreed"), np.ones(3), "float32")


def wrong_arguments_fail_before_anything_is_sent(api: Api, rank: int, size: int) -> None:
    tensor = api.tensor(np.ones((size + 1, 2)), "float32")
    scalar = api.tensor(np.ones(()), "float32")
    either = (UsageError, HorovodInternalError)
    expect_error(UsageError, lambda: api.call("broadcast", tensor, size))
    expect_error(UsageError, lambda: api.call("broadcast", tensor, -1))
    expect_error(UsageError, lambda: api.call("alltoall", tensor, [2] * (size + 1)))
    expect_error(UsageError, lambda: api.call("alltoall", tensor, [size + 2] * size))
    expect_error(UsageError, lambda: api.call("alltoall", tensor, [-1] * size))
    if size > 1:
        expect_error(UsageError, lambda: api.call("alltoall", tensor))
    expect_error(either, lambda: api.call("allgather", scalar))
    expect_error(either, lambda: api.call("alltoall", scalar))
    expect_error(either, lambda: api.call("reducescatter", scalar))
    for op in (ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT):
        expect_error(HorovodInternalError, lambda op=op: api.call("reducescatter", tensor, op=op))
    expect_error(RuntimeError, lambda: api.call("reducescatter", tensor, op=ReduceOp.ADASUM))
    for name in ("allreduce", "reducescatter"):
        expect_error(UsageError, lambda name=name: api.call(name, tensor, op=17))
    expect(api, api.call("allreduce", tensor), np.ones((size + 1, 2)), "float32")


def a_name_that_cannot_be_sent_is_refused(api: Api, rank: int, size: int) -> None:
    tensor = api.tensor(np.ones((size, 2)), "float32")
    for name in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter"):
        arguments = (0,) if name == "broadcast" else ()
        options = {"name": "layer\udc80"}
        expect_error(UsageError, functools.partial(api.call, name, tensor, *arguments, **options))
        begin = functools.partial(api.start, name, tensor, *arguments, **options)
        expect_error(UsageError, lambda begin=begin: api.finish(begin()))
    expect(api, api.call("allreduce", tensor, name="层"), np.ones((size, 2)), "float32")


def a_name_in_flight_is_refused_and_the_first_goes_on(api: Api, rank: int, size: int) -> None:
    if size == 1:
        return
    tensor = api.tensor(np.ones(3), "float32")
    for name in ("allreduce", "allgather", "reducescatter", "grouped_allreduce"):
        given: Any = [tensor, tensor] if name == "grouped_allreduce" else tensor
        begin = functools.partial(api.start, name, given, name="twice")
        if rank == 0:
            handle = begin()
            assert f"{name}.twice" in str(expect_error(UsageError, begin))
            api.call("barrier")
        else:
            api.call("barrier")
            handle = begin()
        got = api.finish(handle)
        assert all(
            (api.values(each) == 1).all() for each in (got if given is not tensor else [got])
        )


CHECKS: tuple[Callable[[Api, int, int], None], ...] = (
    allreduce_of_all_dtypes_and_shapes,
    allreduce_averages,
    average_of_integers_truncates_towards_zero,
    allreduce_takes_minimum_maximum_product,
    allreduce_scales_before_and_after,
    allreduce_gives_the_same_bits_on_all_ranks,
    large_tensors_are_reduced_and_gathered,
    grouped_allreduce_keeps_order_shapes_and_dtypes,
    allgather_joins_unequal_parts,
    grouped_allgather_keeps_order,
    broadcast_copies_from_every_root,
    alltoall_sends_what_the_splits_say,
    alltoall_counts_more_rows_than_int32_holds,
    alltoall_divides_equally_without_splits,
    reducescatter_leaves_own_rows,
    reducescatter_averages_and_scales,
    grouped_reducescatter_keeps_order,
    named_operations_match_in_any_order,
    operations_of_all_kinds_run_together,
    gradients_flow_through_every_operation,
    gradient_of_allgather_is_that_of_the_own_rows,
    disagreement_is_an_error_on_all_ranks,
    wrong_arguments_fail_before_anything_is_sent,
    a_name_that_cannot_be_sent_is_refused,
    a_name_in_flight_is_refused_and_the_first_goes_on,
)
