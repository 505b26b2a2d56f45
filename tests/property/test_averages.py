"""Averages of integers in jobs of any size."""

from __future__ import annotations

import numpy as np
from arrays import Placed
from thread_ranks import ThreadRanks

from horovod.group import ReduceOp


def test_the_average_of_equal_integers_is_that_integer() -> None:
    # 49 * (1 / 49) is less than 1 in float64; no smaller number shows that.
    size = 49

    def body(rank: int) -> list[int]:
        array = Placed(np.array([1, -1, 7, 1000], np.int32), "int32", 0)
        group = ranks.groups[rank]
        buffers = [array.buffer]
        group.allreduce(buffers, buffers, op=ReduceOp.AVERAGE, name="x", keep=array).wait(20.0)
        return list(array.bits)

    with ThreadRanks(size) as ranks:
        assert ranks.run(body) == [[1, -1, 7, 1000]] * size
