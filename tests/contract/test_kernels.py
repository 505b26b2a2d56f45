"""The contract of reductions, with the kernels of each instruction set forced once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from collectives import (
    allreduce_averages,
    allreduce_of_all_dtypes_and_shapes,
    allreduce_scales_before_and_after,
    allreduce_takes_minimum_maximum_product,
    average_of_integers_truncates_towards_zero,
    large_tensors_are_reduced_and_gathered,
    reducescatter_leaves_own_rows,
)
from exact_numbers import (
    averages_are_quotients_of_the_dtype,
    averages_of_integers_are_exact_however_large,
    factors_give_the_bits_of_the_dtypes_own_product,
)
from thread_ranks import run_ranks
from torch_api import TorchApi

from horovod import _native

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKS = (
    allreduce_of_all_dtypes_and_shapes,
    allreduce_averages,
    average_of_integers_truncates_towards_zero,
    allreduce_takes_minimum_maximum_product,
    allreduce_scales_before_and_after,
    large_tensors_are_reduced_and_gathered,
    reducescatter_leaves_own_rows,
    factors_give_the_bits_of_the_dtypes_own_product,
    averages_are_quotients_of_the_dtype,
    averages_of_integers_are_exact_however_large,
)


@pytest.fixture(params=["base", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    best = _native.kernel_isa()
    if not _native.select_kernel_isa(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    assert _native.select_kernel_isa(best)


def test_each_instruction_set_keeps_the_contract(isa: str) -> None:
    assert _native.kernel_isa() == isa
    for check in CHECKS:
        run_ranks(3, lambda rank, check=check: check(TorchApi(), rank, 3))


def test_an_unknown_instruction_set_changes_nothing() -> None:
    best = _native.kernel_isa()
    assert not _native.select_kernel_isa("sse")
    assert _native.kernel_isa() == best
