"""Which numbers reductions give, to the bit; see :mod:`collectives` for what a check is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from collectives import FLOATS, SIGNED, UNSIGNED, expect, known

from horovod._rank.reduction import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectives import Api

_FACTORS = (0.1, 1 / 3, -1.7)
# Small values travel with the announcement, large ones by themselves.
_COUNTS = (7, 5003)
_LIMITS = {dtype: np.iinfo(dtype) for dtype in SIGNED + UNSIGNED}


def factors_give_the_bits_of_the_dtypes_own_product(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, FLOATS):
        if _scales_before_the_sum(api) and dtype in ("float16", "bfloat16"):
            continue
        for count in _COUNTS:
            mine, whole = _spread(api, rank, size, count, dtype)
            for factor in _FACTORS:
                product = _times(api, whole, factor, dtype)
                for function in ("allreduce", "reducescatter"):
                    own = _own(function, count, rank, size)
                    given = (function, mine, ReduceOp.SUM)
                    _expect_bits(api, _call(api, *given, prescale_factor=factor), product[own])
                    if not _scales_before_the_sum(api):
                        _expect_bits(api, _call(api, *given, postscale_factor=factor), product[own])


def the_frameworks_own_product_and_quotient_are_the_same(api: Api, rank: int, size: int) -> None:
    if _scales_before_the_sum(api):
        return
    for dtype in ("float32", "float64"):
        mine, whole = _spread(api, rank, size, 501, dtype)
        tensor = api.tensor(whole, dtype)
        for factor in _FACTORS:
            got = _call(api, "allreduce", mine, ReduceOp.SUM, prescale_factor=factor)
            _expect_bits(api, got, api.values(tensor * factor))
        got = _call(api, "allreduce", mine, ReduceOp.AVERAGE)
        _expect_bits(api, got, api.values(tensor / size))


def averages_are_quotients_of_the_dtype(api: Api, rank: int, size: int) -> None:
    if _scales_before_the_sum(api):
        return
    for dtype in known(api, FLOATS):
        for count in _COUNTS:
            mine, whole = _spread(api, rank, size, count, dtype)
            quotient = _computed(api, whole, lambda x: x / x.dtype.type(size), dtype)
            for function in ("allreduce", "reducescatter"):
                own = _own(function, count, rank, size)
                _expect_bits(api, _call(api, function, mine, ReduceOp.AVERAGE), quotient[own])


def averages_of_integers_are_exact_however_large(api: Api, rank: int, size: int) -> None:
    for dtype in known(api, SIGNED + UNSIGNED):
        limits = _LIMITS[dtype]
        for count in _COUNTS:
            every = [_any_integers(r, count, limits) for r in range(size)]
            exact = [_truncated(sum(values), size) for values in zip(*every, strict=True)]
            expected = np.array(exact, dtype=object)
            mine = api.tensor(np.array(every[rank], dtype=limits.dtype), dtype)
            for function in ("allreduce", "reducescatter"):
                own = _own(function, count, rank, size)
                _expect_integers(
                    api, _call(api, function, mine, ReduceOp.AVERAGE), expected[own], dtype
                )


def integers_are_scaled_in_float64_and_truncated(api: Api, rank: int, size: int) -> None:
    values = np.arange(-50, 51)
    for dtype in ("int8", "int32", "int64"):
        tensor = api.tensor(values if rank == 0 else np.zeros_like(values), dtype)
        for factor in (0.3, -0.7, 1.2):
            expected = np.trunc(values * factor)
            for which in ("prescale_factor", "postscale_factor"):
                got = _call(api, "allreduce", tensor, ReduceOp.SUM, **{which: factor})
                expect(api, got, expected, dtype)
            got = _call(api, "allreduce", tensor, ReduceOp.AVERAGE, prescale_factor=factor)
            expect(api, got, np.trunc(expected / size), dtype)
            got = _call(api, "allreduce", tensor, ReduceOp.AVERAGE, postscale_factor=4.0)
            wide = np.clip(np.trunc(values * 4 / size), _LIMITS[dtype].min, _LIMITS[dtype].max)
            expect(api, got, wide, dtype)


def _scales_before_the_sum(api: Api) -> bool:
    """Whether all factors become one of the dtype, which inputs are multiplied by, as in NCCL."""
    return getattr(api, "scales_before_the_sum", False)


def _call(api: Api, function: str, tensor: Any, op: ReduceOp, **factors: float) -> Any:
    return api.call(function, tensor, op=op, **factors)


def _own(function: str, count: int, rank: int, size: int) -> slice:
    if function == "allreduce":
        return slice(None)
    base, more = divmod(count, size)
    begin = rank * base + min(rank, more)
    return slice(begin, begin + base + (rank < more))


def _spread(api: Api, rank: int, size: int, count: int, dtype: str) -> tuple[Any, Any]:
    """A tensor of this rank, and the sum of all; no element is on two ranks, so none is rounded."""
    numbers = np.random.default_rng(count).standard_normal(count)
    whole = _as_numpy(api, api.tensor(numbers, dtype))
    return api.tensor(np.where(np.arange(count) % size == rank, whole, 0.0), dtype), whole


def _as_numpy(api: Api, tensor: Any) -> Any:
    """The values, in the type that a dtype computes with."""
    return api.values(tensor).astype(np.float64 if api.dtype(tensor) == "float64" else np.float32)


def _computed(api: Api, values: Any, function: Callable[[Any], Any], dtype: str) -> Any:
    """What a function of the values gives, rounded to the dtype once more."""
    return _as_numpy(api, api.tensor(function(values), dtype))


def _times(api: Api, values: Any, factor: float, dtype: str) -> Any:
    return _computed(api, values, lambda x: x * x.dtype.type(factor), dtype)


def _expect_bits(api: Api, tensor: Any, values: Any) -> None:
    got = _as_numpy(api, tensor)
    wanted = np.asarray(values).astype(got.dtype)
    assert got.shape == wanted.shape
    different = np.flatnonzero(got != wanted)
    assert different.size == 0, (
        f"{different.size} of {got.size} elements of {api.dtype(tensor)} differ, the first is "
        f"{got[different[0]]!r} instead of {wanted[different[0]]!r}"
    )


def _any_integers(rank: int, count: int, limits: np.iinfo[Any]) -> list[int]:
    """Any numbers of the dtype, the ends of its range first."""
    generator = np.random.default_rng(rank)
    numbers = generator.integers(limits.min, limits.max, count, limits.dtype, endpoint=True)
    ends = [limits.max, limits.min, limits.max - rank]
    return [*ends, *(int(number) for number in numbers[len(ends) :])]


def _truncated(total: int, size: int) -> int:
    quotient = abs(total) // size
    return quotient if total >= 0 else -quotient


def _expect_integers(api: Api, tensor: Any, values: Any, dtype: str) -> None:
    # As int64 the upper half of uint64 has negative numbers.
    wanted = np.array([int(value) for value in values], dtype=_LIMITS[dtype].dtype)
    assert api.dtype(tensor) == dtype
    np.testing.assert_array_equal(api.values(tensor), wanted.astype(np.int64), err_msg=dtype)


CHECKS = (
    factors_give_the_bits_of_the_dtypes_own_product,
    the_frameworks_own_product_and_quotient_are_the_same,
    averages_are_quotients_of_the_dtype,
    averages_of_integers_are_exact_however_large,
    integers_are_scaled_in_float64_and_truncated,
)
