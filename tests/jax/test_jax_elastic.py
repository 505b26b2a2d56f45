"""An elastic job goes on when one of its ranks dies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from environments import said_by

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent
WORDS = ("-np", 3, "--min-np", 2, "--max-np", 3, "-H", "localhost:3")
LAUNCHER = (sys.executable, "-m", "horovod.runner.cli", *WORDS)


@pytest.mark.parametrize("kind", ["whole", "shares"])
def test_the_others_go_on_from_the_last_commit(
    kind: str, run_python: Callable[..., Any], tmp_path: Path
) -> None:
    job = run_python(FOLDER / "jax_elastic_rank.py", tmp_path / "died", kind, launcher=LAUNCHER)
    assert job.returncode == 0, job.stdout + job.stderr
    said = [line for rank in range(3) for line in said_by(job, rank)]
    done = [line for line in said if line.startswith("done with")]
    assert len(done) == 2, job.stdout + job.stderr
    assert len(set(done)) == 1
    assert done[0].startswith("done with -2.28544"), done
    assert "epoch 2 on 3: 3" in job.stdout
    assert "epoch 5 on 2: 2" in job.stdout


def test_each_sample_counts_once_in_loops_that_go_on(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    job = run_python(FOLDER / "jax_elastic_loops_rank.py", tmp_path / "died", launcher=LAUNCHER)
    assert job.returncode == 0, job.stdout + job.stderr
    done = [line for rank in range(3) for line in said_by(job, rank)]
    assert done == ["done: each sample [3] times on 2 ranks"] * 2, job.stdout + job.stderr


def test_the_global_batch_stays_in_loops_that_go_on(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    rank = FOLDER / "jax_elastic_loops_rank.py"
    job = run_python(rank, tmp_path / "died", 10, launcher=LAUNCHER)
    assert job.returncode == 0, job.stdout + job.stderr
    done = [line for rank in range(3) for line in said_by(job, rank) if "done" in line]
    assert done == ["done: 15 steps on 2 ranks"] * 2, job.stdout + job.stderr
    line = "3 to 2 ranks: the global batch stays 10 samples: 2 ranks take 5 each, in 2 passes"
    assert line in job.stdout + job.stderr
