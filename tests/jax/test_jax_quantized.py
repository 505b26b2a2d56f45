"""Compression to 8 bits in JAX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = Path(__file__).resolve().parent / "jax_quantized_rank.py"


def test_ranks_on_two_hosts_get_the_same_rounded_values(run_python: Callable[..., Any]) -> None:
    job = run_python(str(RANKS))
    assert job.returncode == 0, job.stderr
    assert job.stdout.splitlines() == [
        *(f"{name} is rounded alike" for name in ("int8", "fp8", "fp8_e5m2")),
        "auto is int8",
        "auto is none",
    ]
