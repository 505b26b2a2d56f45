"""The contract suite for horovod.mxnet, on both of MXNet's engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import CHECKS
from environments import said_by
from mxnet_lacking import LACKING, LACKING_IF_NAIVE, lacking

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(("size", "engine"), [(2, "NaiveEngine"), (3, "ThreadedEngine")])
def test_contract(size: int, engine: str, run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(size, "mxnet_contract_rank.py", MXNET_ENGINE_TYPE=engine)
    assert job.returncode == 0, job.stdout + job.stderr
    left_out = lacking(engine == "NaiveEngine")
    names = [check.__name__ for check in CHECKS if check.__name__ not in left_out]
    assert [said_by(job, rank) for rank in range(size)] == [names] * size


def test_what_the_interface_lacks_is_part_of_the_contract() -> None:
    assert {*LACKING, *LACKING_IF_NAIVE} < {check.__name__ for check in CHECKS}
