"""The contract of allreduce, with tensors that lie in memory that all ranks see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from collectives import (
    allreduce_averages,
    allreduce_gives_the_same_bits_on_all_ranks,
    allreduce_of_all_dtypes_and_shapes,
    allreduce_scales_before_and_after,
    allreduce_takes_minimum_maximum_product,
    average_of_integers_truncates_towards_zero,
    grouped_allreduce_keeps_order_shapes_and_dtypes,
)
from exact_numbers import (
    averages_are_quotients_of_the_dtype,
    averages_of_integers_are_exact_however_large,
    factors_give_the_bits_of_the_dtypes_own_product,
)
from thread_ranks import ThreadRanks
from torch_api import TorchApi

import horovod.torch as hvd
from horovod._rank import context
from horovod.torch.tensors import adopt

if TYPE_CHECKING:
    import torch

CHECKS = (
    allreduce_of_all_dtypes_and_shapes,
    allreduce_averages,
    average_of_integers_truncates_towards_zero,
    allreduce_takes_minimum_maximum_product,
    allreduce_scales_before_and_after,
    allreduce_gives_the_same_bits_on_all_ranks,
    grouped_allreduce_keeps_order_shapes_and_dtypes,
    factors_give_the_bits_of_the_dtypes_own_product,
    averages_are_quotients_of_the_dtype,
    averages_of_integers_are_exact_however_large,
)
_NUM_BYTES = 64 << 20
_ALIGNMENT = 64


class SharedMemoryApi(TorchApi):
    """Reduces in place, in an array that :meth:`Group.share_memory` made.

    Ranks call with equal shapes in the same order, so their tensors lie at the same places.
    """

    def __init__(self) -> None:
        handle = context.global_group().share_memory(_NUM_BYTES, name="contract")
        handle.wait()
        self._memory = handle.results()[0]
        self._end = 0

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        if function == "allreduce":
            return self._in_place(function, self._move_in(args[0]), args[1:], kwargs)
        if function == "grouped_allreduce":
            places = [self._move_in(tensor) for tensor in args[0]]
            return list(self._in_place(function, places, args[1:], kwargs))
        return super().call(function, *args, **kwargs)

    def _in_place(self, function: str, what: Any, args: Any, kwargs: Any) -> Any:
        # What nobody waits for at once does not travel with its announcement.
        return hvd.synchronize(getattr(hvd, f"{function}_async_")(what, *args, **kwargs))

    def _move_in(self, tensor: torch.Tensor) -> torch.Tensor:
        name = str(tensor.dtype).removeprefix("torch.")
        place = adopt(self._memory.part(self._end, name, tuple(tensor.shape)))
        self._end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        return place.copy_(tensor)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_tensors_in_shared_memory_keep_the_contract(size: int) -> None:
    def body(rank: int) -> None:
        api = SharedMemoryApi()
        for check in CHECKS:
            check(api, rank, size)

    with ThreadRanks(size) as ranks:
        ranks.run(body)
        direct = [engine.statistics()["direct_batches"] for engine in ranks.engines]
    assert len(set(direct)) == 1, "all ranks take the same way"
    assert direct[0] > 100 if size > 1 else direct[0] == 0
