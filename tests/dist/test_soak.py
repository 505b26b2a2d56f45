"""The short form of benchmarks/soak.py: mixed traffic must leave nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from launcher import environment

if TYPE_CHECKING:
    from collections.abc import Callable

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"
MINUTES = 0.75
TIMEOUT_S = 240
# Of 240 MiB; the names that the engines remember take some of it.
MOST_GROWTH_BYTES = 5_000_000


@pytest.fixture(name="samples", scope="module")
def _samples(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    report = tmp_path_factory.mktemp("soak") / "soak.json"
    command = [sys.executable, str(SOAK), f"--minutes={MINUTES}", f"--json={report}"]
    # It ends by itself with an error if a result is wrong or an operation is stuck.
    run = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert report.exists(), run.stderr
    samples: list[dict[str, Any]] = json.loads(report.read_text())["samples"]
    assert samples[-1]["operations"] > 1000, run.stdout
    # Behind the first third all scenes have been seen, and what is made once has been made.
    return samples[len(samples) // 3 :]


def _of_ranks(
    samples: list[dict[str, Any]], what: str, summary: Callable[[list[int]], float]
) -> list[float]:
    """One number for each rank."""
    return [summary(list(numbers)) for numbers in zip(*(s[what] for s in samples), strict=True)]


def test_memory_does_not_grow(samples: list[dict[str, Any]]) -> None:
    third = max(1, len(samples) // 3)
    before = _of_ranks(samples[:third], "resident_bytes", median)
    after = _of_ranks(samples[-third:], "resident_bytes", median)
    growth = [late - early for early, late in zip(before, after, strict=True)]
    assert max(growth) < MOST_GROWTH_BYTES, growth


@pytest.mark.parametrize("what", ["descriptors", "threads", "tensors"])
def test_nothing_is_left_behind(samples: list[dict[str, Any]], what: str) -> None:
    # An operation that is still pending would hold its tensors.
    seen = {tuple(sample[what]) for sample in samples}
    assert len(seen) == 1, seen
