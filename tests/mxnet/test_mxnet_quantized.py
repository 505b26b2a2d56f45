"""Compression to 8 bits in MXNet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = Path(__file__).resolve().parent / "mxnet_quantized_rank.py"


def test_a_trainer_rounds_gradients_between_hosts(run_python: Callable[..., Any]) -> None:
    job = run_python(str(RANKS))
    assert job.returncode == 0, job.stderr
    assert job.stdout.splitlines() == [
        "none is exact",
        "int8 is rounded",
        "fp8 is rounded",
        "fp8_e5m2 is rounded",
    ]
