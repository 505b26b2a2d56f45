"""The contract suite for horovod.torch, with ranks as threads and as processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from collectives import CHECKS, Api
from thread_ranks import run_ranks
from torch_api import TorchApi, run_all_checks

import horovod

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Callable[[Api, int, int], None], size: int) -> None:
    run_ranks(size, lambda rank: check(TorchApi(), rank, size))


def test_contract_between_processes() -> None:
    names = [check.__name__ for check in CHECKS]
    assert horovod.run(run_all_checks, num_proc=3) == [names] * 3
