"""Whole training loops, with ranks as threads: each learns what one process would."""

from __future__ import annotations

import pytest
from thread_ranks import run_ranks
from torch_scenarios import SCENARIOS, Job
from torch_training import check_equal

# The compiler is no friend of threads.
THREADED = sorted(set(SCENARIOS) - {"compiled"})


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", THREADED)
def test_scenario(name: str, size: int) -> None:
    train, tolerance = SCENARIOS[name]
    everyones = run_ranks(size, lambda rank: train(Job([rank], distributed=True)))
    check_equal(everyones, train(Job(range(size))), tolerance)
