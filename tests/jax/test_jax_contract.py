"""The contract suite for horovod.jax, outside and inside of jit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import CHECKS
from environments import said_by
from jax_lacking import LACKING, lacking

if TYPE_CHECKING:
    from collections.abc import Callable


# What a mode does is the same for any number of ranks, so each is run with one of them.
@pytest.mark.parametrize(("size", "mode"), [(2, "eager"), (3, "jitted")])
def test_contract(size: int, mode: str, run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(size, "jax_contract_rank.py", mode)
    assert job.returncode == 0, job.stdout + job.stderr
    names = [check.__name__ for check in CHECKS if check.__name__ not in lacking()]
    assert [said_by(job, rank) for rank in range(size)] == [names] * size


def test_what_the_interface_lacks_is_part_of_the_contract() -> None:
    assert {*LACKING} < {check.__name__ for check in CHECKS}
