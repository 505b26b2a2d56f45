"""An elastic job goes on when one of its ranks dies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments import said_by

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = Path(__file__).with_name("mxnet_elastic_rank.py")


def test_the_others_go_on_from_the_last_commit(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    words = ("-np", 3, "--min-np", 2, "--max-np", 3, "-H", "localhost:3")
    launcher = (sys.executable, "-m", "horovod.runner.cli", *words)
    job = run_python(SCRIPT, tmp_path / "died", launcher=launcher)
    assert job.returncode == 0, job.stdout + job.stderr
    said = [line for rank in range(3) for line in said_by(job, rank)]
    done = [line for line in said if line.startswith("done with")]
    assert len(done) == 2, job.stdout + job.stderr
    assert len(set(done)) == 1
    assert "epoch 2 on 3" in job.stdout
    assert "epoch 5 on 2" in job.stdout
