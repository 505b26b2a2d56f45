"""Training as users start it: by horovodrun, with real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from landscapes.checkpoint import load_model, read_tensors
from landscapes.train.saving import TRAINING

ENDS_WITHIN_S = 240
HERE = Path(__file__).parent


def run_job(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "horovod.runner.cli", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
        check=False,
    )


def options(data: Path, out: Path) -> list[str]:
    small = ["--preset", "smoke32", "--batch", "2", "--guide-steps", "2", "--steps", "12"]
    return ["train", "--data", str(data), "--out", str(out), *small]


def test_a_job_of_two_ranks_trains(data: Path, tmp_path: Path) -> None:
    done = run_job("-np", "2", sys.executable, "-m", "landscapes", *options(data, tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"step 10  \d+\.\d img/s", done.stdout)
    assert done.stdout.count("step 10 ") == 1
    assert load_model(tmp_path / "run").config["ranks"] == 2


def test_a_killed_rank_costs_steps_and_not_the_run(data: Path, tmp_path: Path) -> None:
    script = [sys.executable, str(HERE / "losing_rank.py")]
    few = ["--commit-every", "3", "--save-every", "3", "--print-every", "1"]
    done = run_job(
        *["-np", "2", "--min-np", "1", "--max-np", "2", *script],
        *[*options(data, tmp_path / "run"), *few],
    )
    assert done.returncode == 0, done.stderr
    progress = read_tensors(tmp_path / "run" / TRAINING)[1]["progress"]
    assert progress["step"] == 12
    # Six steps of two ranks, and six of the one that was left: no picture twice, none left out.
    assert progress["position"] == 6 * 4 + 6 * 2
    assert "step 12 " in done.stdout
    assert "SIGKILL" in done.stderr + done.stdout
