"""Sixty-four ranks on one machine: connections of all with all, and one allreduce."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from launcher import launched

NUM_RANKS = 64
# 30 s is the promise on two idle cores; tests share theirs, and 64 times Python is much to start.
PATIENCE_S = 150.0
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "many_ranks.py"


def test_sixty_four_ranks_reduce_and_end() -> None:
    rank = runpy.run_path(str(BENCHMARK))["RANK"]
    words = ("-np", str(NUM_RANKS), sys.executable, "-c", rank)
    # They wait for each other as long as the slowest needs to start.
    with launched(*words, HOROVOD_START_TIMEOUT="120") as launcher:
        assert launcher.process.wait(PATIENCE_S) == 0
        launcher.wait_lines("stdout", "seconds", NUM_RANKS)
    assert launcher.elapsed_s < PATIENCE_S
