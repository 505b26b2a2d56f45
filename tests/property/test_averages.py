"""Averages of integers in jobs of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from arrays import Placed
from thread_ranks import ThreadRanks

from horovod._rank.reduction import Reduction

if TYPE_CHECKING:
    from collections.abc import Sequence


def _averages(values: Sequence[int], dtype: str, size: int, postscale: float = 1.0) -> list[int]:
    def body(rank: int) -> list[int]:
        array = Placed(np.array(values, dtype), dtype, 0)
        group = ranks.groups[rank]
        buffers = [array.buffer]
        handle = group.allreduce(
            buffers, buffers, Reduction(postscale=postscale), name="x", keep=array
        )
        handle.wait(20.0)
        return [int(value) for value in array.bits]

    with ThreadRanks(size) as ranks:
        first, *others = ranks.run(body)
    assert all(other == first for other in others)
    return first


def test_the_average_of_equal_integers_is_that_integer() -> None:
    # 49 * (1 / 49) is less than 1 in float64; no smaller number shows that.
    assert _averages([1, -1, 7, 1000], "int32", 49) == [1, -1, 7, 1000]


def test_a_factor_does_not_lose_what_is_whole() -> None:
    assert _averages([1, -1, 7, 1000], "int32", 49, postscale=2.0) == [2, -2, 14, 2000]


def test_sums_that_no_type_holds_have_an_average() -> None:
    # In float64 this number has no neighbor nearer than 1024; its sum is far beyond int64.
    large = 2**63 - 1
    assert _averages([large, -large - 1, 3], "int64", 7) == [large, -large - 1, 3]
    assert _averages([100, -128], "int8", 49) == [100, -128]
