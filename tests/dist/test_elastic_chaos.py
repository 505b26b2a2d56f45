"""The short form of benchmarks/elastic_chaos.py: workers are killed, stopped and sent away."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launcher import environment

CHAOS = Path(__file__).resolve().parents[2] / "benchmarks" / "elastic_chaos.py"
TIMEOUT_S = 480


@pytest.mark.slow
def test_a_minute_of_chaos_loses_no_sample_and_leaves_nothing_behind(tmp_path: Path) -> None:
    report = tmp_path / "chaos.json"
    command = [sys.executable, str(CHAOS), "--minutes=1", "--seed=9", f"--json={report}"]
    run = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert report.exists(), run.stderr
    found = json.loads(report.read_text())
    assert not found["faults"], run.stdout + run.stderr
    assert run.returncode == 0
    # All kinds of disturbance, and the job lived through each of them.
    assert found["disturbances"].keys() == {"kill", "term", "stop", "stop for a moment"}
    assert found["generations"] > 5
