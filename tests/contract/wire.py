"""Objects and compressions of every adapter; see :mod:`collectives` for what a check is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from collectives import FLOATS, expect, known
from process_sets import even_and_odd

from horovod._rank.reduction import ReduceOp

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectives import Api

_SENT_AS = {"fp16": "float16", "bf16": "bfloat16"}


class Tenfold:
    """A compression of the user's own."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, float]:
        return tensor * 10, 10.0

    @staticmethod
    def decompress(tensor: Any, ctx: float) -> Any:
        return tensor / ctx


def objects_travel_between_all_ranks_and_within_sets(api: Api, rank: int, size: int) -> None:
    hvd = api.interface
    mine = {"rank": rank, "deep": [(r, "x" * r) for r in range(rank)]}
    every = [{"rank": r, "deep": [(i, "x" * i) for i in range(r)]} for r in range(size)]
    for root in range(size):
        got = hvd.broadcast_object(mine, root)
        assert got == every[root]
        assert (got is mine) == (rank == root)
    assert hvd.allgather_object(mine) == every
    if size == 1:
        return
    with even_and_odd(api, rank, size) as (process_set, _, ranks):
        got = hvd.broadcast_object(mine, ranks[-1], name="of a set", process_set=process_set)
        assert got == every[ranks[-1]]
        gathered = hvd.allgather_object(mine, process_set=process_set)
        assert gathered == [every[r] for r in ranks]


def compressions_cast_floats_only(api: Api, rank: int, size: int) -> None:
    for name, sent_as in _SENT_AS.items():
        compression = getattr(api.interface.Compression, name, None)
        if compression is None:
            continue
        for dtype in known(api, ("float32", "float64", "uint8", "int16", "int32", "bool")):
            tensor = api.tensor(np.ones(3), dtype)
            sent, context = compression.compress(tensor)
            assert api.dtype(sent) == (sent_as if dtype in FLOATS else dtype)
            assert (sent is tensor) == (dtype not in FLOATS)
            expect(api, compression.decompress(sent, context), np.ones(3), dtype)


def reductions_may_be_compressed(api: Api, rank: int, size: int) -> None:
    compression = api.interface.Compression
    mean = (size + 1) / 2
    for chosen in (compression.fp16, compression.bf16, Tenfold):
        for dtype in known(api, ("float32", "float64")):
            tensor = api.tensor(np.full(size, 1.0 + rank), dtype)
            for got, count in (
                (api.call("allreduce", tensor, compression=chosen), size),
                (api.call("grouped_allreduce", [tensor, tensor], compression=chosen)[1], size),
                (api.call("reducescatter", tensor, compression=chosen), 1),
            ):
                expect(api, got, np.full(count, mean), dtype, 1e-6)
    integers = api.tensor(np.full(2, rank), "int32")
    got = api.call("allreduce", integers, op=ReduceOp.SUM, compression=compression.fp16)
    expect(api, got, np.full(2, sum(range(size))), "int32")
    if size > 1:
        # 9 bits are too many for bfloat16, not for float16.
        fine = api.tensor(np.ones(1) + 2.0**-9, "float32")
        for chosen, expected in ((compression.fp16, 1 + 2.0**-9), (compression.bf16, 1.0)):
            got = api.call("allreduce", fine, compression=chosen)
            expect(api, got, np.full(1, expected), "float32")


def gradients_of_compressed_reductions_keep_their_dtype(api: Api, rank: int, size: int) -> None:
    def reduced(x: Any) -> Any:
        compression = api.interface.Compression.bf16
        return api.call("allreduce", x, compression=compression, op=ReduceOp.SUM)

    got = api.gradient(reduced, np.ones(3), np.ones_like)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.full(3, size))


CHECKS: tuple[Callable[[Api, int, int], None], ...] = (
    objects_travel_between_all_ranks_and_within_sets,
    compressions_cast_floats_only,
    reductions_may_be_compressed,
    gradients_of_compressed_reductions_keep_their_dtype,
)
