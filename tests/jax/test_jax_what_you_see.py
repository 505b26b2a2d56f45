"""The table of docs/failures.md, in JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from what_you_see import JOBS, RANK, VARIABLES, check

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("job", JOBS)
def test_what_you_see(job: str, run_ranks: Callable[..., Any]) -> None:
    done = run_ranks(2, RANK, "jax", job, **VARIABLES)
    check("jax", job, done.stdout, done.stderr)
