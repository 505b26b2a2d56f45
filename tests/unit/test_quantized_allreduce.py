"""Allreduces that travel between hosts in 8 bits: bit for bit what NumPy computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.quantized_reference import reduced

from horovod import _native
from horovod._rank import context
from horovod._rank.reduction import Quantized, QuantizedFormat, ReduceOp, Reduction
from horovod.errors import HorovodInternalError, UnsupportedError
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# AUTO becomes one of the others, or nothing.
FORMATS = [each for each in QuantizedFormat if each is not QuantizedFormat.AUTO]
each_format = pytest.mark.parametrize("wire", FORMATS)
HOSTS = (2, 1, 2)


def _buffer(array: NDArray[Any]) -> _native.Buffer:
    return _native.Buffer(array.ctypes.data, array.dtype.name, array.shape)


def _allreduce(
    arrays: Sequence[NDArray[Any]],
    wire: QuantizedFormat,
    op: ReduceOp = ReduceOp.SUM,
    residuals: Sequence[NDArray[Any]] = (),
    **options: Any,
) -> None:
    """Reduce arrays in place as one operation."""
    buffers = [_buffer(array) for array in arrays]
    quantized = Quantized(wire, [_buffer(residual) for residual in residuals])
    group = context.global_group()
    reduction = Reduction(op, quantized=quantized, **options)
    group.allreduce(buffers, buffers, reduction, keep=[*arrays, *residuals]).wait()


def _values(rank: int, count: int, size: float, seed: int) -> NDArray[np.float32]:
    random = np.random.default_rng([seed, rank])
    spread = np.exp2(random.integers(-12, 1, count))
    return (random.standard_normal(count) * spread * size).astype(np.float32)


def _by_host(values: Sequence[NDArray[Any]]) -> list[list[NDArray[Any]]]:
    places = iter(values)
    return [[next(places) for _ in range(count)] for count in HOSTS]


@each_format
@settings(max_examples=6, deadline=None)
@given(
    counts=st.lists(st.sampled_from([1, 7, 255, 256, 257, 1000, 20_000]), min_size=1, max_size=3),
    size=st.sampled_from([1.0, 1e-30, 1e30, 0.0]),
    seed=st.integers(0, 1000),
)
def test_sums_are_those_of_numpy(
    wire: QuantizedFormat, counts: list[int], size: float, seed: int
) -> None:
    def reduce() -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        context.init()
        rank = context.rank()
        arrays = [_values(rank, count, size, seed + i) for i, count in enumerate(counts)]
        residuals = [np.zeros(count, np.float32) for count in counts]
        _allreduce(arrays, wire, residuals=residuals)
        return arrays, residuals

    results = run_ranks(sum(HOSTS), reduce, hosts=HOSTS)
    for i, count in enumerate(counts):
        values = _by_host([_values(rank, count, size, seed + i) for rank in range(sum(HOSTS))])
        none = [np.zeros(count, np.float32)] * sum(HOSTS)
        expected, left = reduced(values, wire, none)
        for arrays, _ in results:
            assert arrays[i].tobytes() == expected.tobytes()
        kept = np.sum([residuals[i] for _, residuals in results], axis=0, dtype=np.float64)
        np.testing.assert_allclose(kept, left, rtol=1e-5, atol=1e-6 * size)


@each_format
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_rounded_once_more(wire: QuantizedFormat, dtype: torch.dtype) -> None:
    def own(rank: int) -> torch.Tensor:
        return torch.from_numpy(_values(rank, 3000, 1.0, 5)).to(dtype)

    def reduce() -> torch.Tensor:
        context.init()
        values = own(context.rank())
        buffer = _native.Buffer(values.data_ptr(), str(dtype).removeprefix("torch."), values.shape)
        reduction = Reduction(ReduceOp.AVERAGE, quantized=Quantized(wire))
        context.global_group().allreduce([buffer], [buffer], reduction, keep=values).wait()
        return values

    results = run_ranks(sum(HOSTS), reduce, hosts=HOSTS)
    given = [own(rank).to(torch.float32).numpy() for rank in range(sum(HOSTS))]
    total = torch.from_numpy(reduced(_by_host(given), wire)[0])
    wide = total.to(torch.float64) if dtype is torch.float64 else total
    expected = (wide / sum(HOSTS)).to(dtype)
    for result in results:
        assert torch.equal(result, expected)


@each_format
def test_what_is_left_arrives_in_the_next_steps(wire: QuantizedFormat) -> None:
    steps = 20

    def reduce() -> NDArray[np.float64]:
        context.init()
        residual = np.zeros(2000, np.float32)
        total = np.zeros(2000)
        for _ in range(steps):
            values = _values(context.rank(), 2000, 1.0, 3)
            _allreduce([values], wire, residuals=[residual], postscale=0.5)
            total += values
        return total

    results = run_ranks(4, reduce, hosts=[2, 2])
    exact = np.sum([_values(rank, 2000, 1.0, 3) for rank in range(4)], axis=0) * steps / 2
    # Without feedback, the errors of all steps are alike, and grow with their number.
    lost = (
        reduced(
            [
                [_values(0, 2000, 1.0, 3), _values(1, 2000, 1.0, 3)],
                [_values(2, 2000, 1.0, 3), _values(3, 2000, 1.0, 3)],
            ],
            wire,
        )[1]
        / 2
        * steps
    )
    assert np.abs(results[0] - exact).max() < np.abs(lost).max() / 4
    assert all(np.array_equal(result, results[0]) for result in results)


@each_format
def test_infinities_and_nans_reach_all_ranks_where_they_are(wire: QuantizedFormat) -> None:
    def reduce() -> NDArray[Any]:
        context.init()
        values = np.ones(1000, np.float32)
        if context.rank() == 2:
            values[[0, 400, 999]] = np.inf, -np.inf, np.nan
        residual = np.zeros(1000, np.float32)
        _allreduce([values], wire, residuals=[residual])
        assert np.isfinite(residual).all()
        return values

    for result in run_ranks(sum(HOSTS), reduce, hosts=HOSTS):
        assert result[0] == np.inf
        assert result[400] == -np.inf
        assert np.isnan(result[999])
        assert np.isfinite(np.delete(result, [0, 400, 999])).all()


def test_a_single_host_rounds_nothing() -> None:
    def reduce() -> NDArray[Any]:
        context.init()
        values = _values(context.rank(), 1000, 1.0, 1)
        _allreduce([values], QuantizedFormat.INT8)
        return values

    exact = _values(0, 1000, 1.0, 1) + _values(1, 1000, 1.0, 1)
    for result in run_ranks(2, reduce):
        assert np.array_equal(result, exact)


def test_every_instruction_set_gives_the_same_bits() -> None:
    def reduce() -> NDArray[Any]:
        context.init()
        values = _values(context.rank(), 5000, 1.0, 1)
        _allreduce([values], QuantizedFormat.FP8_E4M3)
        return values

    before = _native.kernel_isa()
    results = []
    try:
        for isa in ("avx512", "avx2", "base"):
            if _native.select_kernel_isa(isa):
                results += run_ranks(3, reduce, hosts=[1, 1, 1])
    finally:
        _native.select_kernel_isa(before)
    assert all(result.tobytes() == results[0].tobytes() for result in results)


def test_ranks_that_compress_differently_are_told() -> None:
    def reduce() -> None:
        context.init()
        wire = QuantizedFormat.INT8 if context.rank() else QuantizedFormat.FP8_E5M2
        _allreduce([np.ones(10, np.float32)], wire)

    with pytest.raises(HorovodInternalError, match=r"int8 between hosts"):
        run_ranks(2, reduce, hosts=[1, 1])


def test_other_reductions_are_refused() -> None:
    def reduce() -> None:
        context.init()
        _allreduce([np.ones(3, np.float32)], QuantizedFormat.INT8, ReduceOp.MAX)

    with pytest.raises(UnsupportedError, match="Sum and Average only"):
        run_ranks(1, reduce)
