"""Error feedback in JAX: in optimizers of optax, and in functions of gradients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = Path(__file__).resolve().parent / "jax_error_feedback_rank.py"


@pytest.mark.parametrize("way", ["direct", "copied"])  # as of arrays on a GPU
def test_what_is_rounded_off_comes_with_the_next_step(
    way: str, run_python: Callable[..., Any]
) -> None:
    job = run_python(str(RANKS), way)
    assert job.returncode == 0, job.stderr
    assert job.stdout.split() == [
        "errors_make_up_for_the_rounding",
        "errors_of_one_rank_count_once",
        "skipped_steps_leave_no_errors",
    ]
