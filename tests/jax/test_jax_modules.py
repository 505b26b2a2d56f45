"""Modules of flax and equinox with batch statistics of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from environments import said_by

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("library", ["flax", "equinox"])
def test_a_module_equals_one_process(library: str, run_ranks: Callable[..., Any]) -> None:
    kind = {"flax": "a_module_of_flax", "equinox": "a_model_of_equinox"}[library]
    job = run_ranks(2, "jax_modules_rank.py", f"{kind}_equals_one_process")
    assert job.returncode == 0, job.stdout + job.stderr
    assert said_by(job, 0) == said_by(job, 1) == ["equal"]
