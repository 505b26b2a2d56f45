"""The contract suite for horovod.torch with tensors on GPUs, over a fake driver and a fake NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks import CHECKS
from gpu_api import GpuApi, run_all_checks
from gpu_ranks import NCCL, SHARED, STAGED, WAYS, GpuRanks, Way, fake_cuda

import horovod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks import Check
    from torch_cuda import FakeDriver


@pytest.fixture(scope="module")
def driver() -> Iterator[FakeDriver]:
    with fake_cuda() as driver:
        yield driver


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Check, way: Way, size: int, driver: FakeDriver) -> None:
    with GpuRanks(size, way) as ranks:
        ranks.run(lambda rank: check(GpuApi(), rank, size))
    assert driver.wrong_uses() == []


def test_a_single_rank_keeps_the_contract(driver: FakeDriver) -> None:
    with GpuRanks(1, NCCL) as ranks:
        ranks.run(lambda rank: [check(GpuApi(), rank, 1) for check in CHECKS])
    assert driver.wrong_uses() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "ways"),
    [(2, (SHARED,)), (3, (NCCL, STAGED))],
    ids=["shared-2", "nccl-staged-3"],
)
def test_contract_between_processes(
    size: int, ways: tuple[Way, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rank that waits in vain ends the test with a report, not with the patience of the machine.
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    names = [check.__name__ for check in CHECKS]
    for rank in horovod.run(run_all_checks, (ways,), num_proc=size):
        assert [checks for checks, _ in rank] == [names] * len(ways)
        for way, (_, used_nccl) in zip(ways, rank, strict=True):
            if way != SHARED:  # where sets of one rank use NCCL, and all others do not
                assert used_nccl == way.uses_nccl
