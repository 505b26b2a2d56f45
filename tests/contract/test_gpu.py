"""The contract suite for horovod.torch with tensors on GPUs, over a fake driver and a fake NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checks import CHECKS
from gpu_api import GpuApi, run_all_checks
from gpu_ranks import NCCL, SHARED, STAGED, WAYS, GpuRanks, Way, fake_cuda, variables

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


@pytest.mark.parametrize(
    ("way", "size"),
    [(NCCL, 2), (NCCL, 3), (SHARED, 2), (STAGED, 3)],
    ids=["nccl-2", "nccl-3", "shared-2", "staged-3"],
)
def test_contract_between_processes(way: Way, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A rank that waits in vain ends the test with a report, not with the patience of the machine.
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    for name, value in variables(way).items():
        monkeypatch.setenv(name, value)
    names = [check.__name__ for check in CHECKS]
    results = horovod.run(run_all_checks, num_proc=size)
    assert [checks for checks, _ in results] == [names] * size
    if way != SHARED:  # where sets of one rank use NCCL, and all others do not
        assert [used_nccl for _, used_nccl in results] == [way.uses_nccl] * size
