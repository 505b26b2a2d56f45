"""The contract suite for horovod.jax, outside and inside of jit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checks import CHECKS
from jax_lacking import LACKING, lacking
from jax_output import said_by

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(("size", "modes"), [(2, ["eager"]), (3, ["jitted"])])
def test_contract(size: int, modes: list[str], run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(size, "jax_contract_rank.py", *modes)
    assert job.returncode == 0, job.stdout + job.stderr
    names = [check.__name__ for check in CHECKS if check.__name__ not in lacking()]
    wanted = [" ".join([mode, *names]) for mode in modes]
    assert [said_by(job, rank) for rank in range(size)] == [wanted] * size


def test_what_the_interface_lacks_is_part_of_the_contract() -> None:
    assert {*LACKING} < {check.__name__ for check in CHECKS}
