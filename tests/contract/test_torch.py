"""The contract suite for horovod.torch, with ranks as threads and as processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import CHECKS, FAULTS, SIZES
from thread_ranks import run_ranks
from torch_api import TorchApi, run_all_checks

import horovod

if TYPE_CHECKING:
    from checks import Check


def _cases() -> list[Any]:
    cases = []
    for check, sizes in SIZES.items():
        marks = []
        if check in FAULTS:
            marks.append(pytest.mark.xfail(run=False, reason=FAULTS[check]))
        cases += [
            pytest.param(check, size, id=f"{check.__name__}-{size}", marks=marks) for size in sizes
        ]
    return cases


@pytest.mark.parametrize(("check", "size"), _cases())
def test_contract(check: Check, size: int) -> None:
    run_ranks(size, lambda rank: check(TorchApi(), rank, size))


@pytest.mark.parametrize("size", [2, 4])
def test_contract_between_processes(size: int) -> None:
    names = [check.__name__ for check in CHECKS]
    assert horovod.run(run_all_checks, num_proc=size) == [names] * size
