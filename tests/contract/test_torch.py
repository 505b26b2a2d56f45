"""The contract suite for horovod.torch, with ranks as threads and as processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks import CHECKS, SIZES
from thread_ranks import run_ranks
from torch_api import TorchApi, run_all_checks

import horovod

if TYPE_CHECKING:
    from checks import Check


@pytest.mark.parametrize(
    ("check", "size"),
    [
        pytest.param(check, size, id=f"{check.__name__}-{size}")
        for check, sizes in SIZES.items()
        for size in sizes
    ],
)
def test_contract(check: Check, size: int) -> None:
    run_ranks(size, lambda rank: check(TorchApi(), rank, size))


@pytest.mark.slow
def test_contract_between_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4
    # A rank that waits in vain ends the test with a report, not with the patience of the machine.
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    names = [check.__name__ for check in CHECKS]
    assert horovod.run(run_all_checks, num_proc=size) == [names] * size
