"""The contract on two hosts, with each algorithm of allreduce forced once.

Ranks that call their hosts by different names take each other for remote: they meet over TCP, and
measure the network between them.
"""

from __future__ import annotations

import os

import pytest
import torch
from collectives import (
    allgather_joins_unequal_parts,
    allreduce_averages,
    allreduce_gives_the_same_bits_on_all_ranks,
    allreduce_of_all_dtypes_and_shapes,
    allreduce_scales_before_and_after,
    allreduce_takes_minimum_maximum_product,
    broadcast_copies_from_every_root,
    grouped_allreduce_keeps_order_shapes_and_dtypes,
    large_tensors_are_reduced_and_gathered,
    operations_of_all_kinds_run_together,
    reducescatter_leaves_own_rows,
)
from exact_numbers import (
    averages_are_quotients_of_the_dtype,
    averages_of_integers_are_exact_however_large,
    factors_give_the_bits_of_the_dtypes_own_product,
)
from torch_api import TorchApi

import horovod
import horovod.torch as hvd
from horovod._settings.honored import ALLREDUCE_ALGORITHMS

CHECKS = (
    allreduce_of_all_dtypes_and_shapes,
    allreduce_averages,
    allreduce_takes_minimum_maximum_product,
    allreduce_scales_before_and_after,
    allreduce_gives_the_same_bits_on_all_ranks,
    large_tensors_are_reduced_and_gathered,
    grouped_allreduce_keeps_order_shapes_and_dtypes,
    allgather_joins_unequal_parts,
    broadcast_copies_from_every_root,
    reducescatter_leaves_own_rows,
    operations_of_all_kinds_run_together,
    factors_give_the_bits_of_the_dtypes_own_product,
    averages_are_quotients_of_the_dtype,
    averages_of_integers_are_exact_however_large,
)


def run_on_two_hosts() -> list[str]:
    """Runs the checks with one algorithm after the other, each in a job of its own."""
    rank = int(os.environ["HOROVOD_RANK"])
    torch.set_num_threads(1)
    done = []
    for number, algorithm in enumerate(ALLREDUCE_ALGORITHMS):
        # Two ranks on each host in turn, or three and one.
        host = rank % 2 if number % 2 == 0 else rank // 3
        os.environ["HOROVOD_HOSTNAME"] = f"host-{host}"
        os.environ["HOROVOD_ALLREDUCE_ALGORITHM"] = algorithm
        hvd.init()
        for check in CHECKS:
            check(TorchApi(), hvd.rank(), hvd.size())
        hvd.shutdown()
        done.append(algorithm)
    return done


@pytest.mark.slow
def test_each_algorithm_keeps_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    assert horovod.run(run_on_two_hosts, num_proc=4) == [list(ALLREDUCE_ALGORITHMS)] * 4
