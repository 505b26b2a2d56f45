"""A rank that adds up a number of each rank."""

from __future__ import annotations

import array

from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM


def sum_of_ranks() -> float:
    """1 + 2 + ... + size, if all is well; the calling rank has met the others."""
    group = context.global_group()
    values = array.array("f", [1.0 + group.rank])
    buffer = Buffer.from_array(values)
    group.allreduce([buffer], [buffer], PLAIN_SUM, name="sum", waits_next=True).wait()
    return values[0]


if __name__ == "__main__":
    context.init()
    print("sum", sum_of_ranks())
