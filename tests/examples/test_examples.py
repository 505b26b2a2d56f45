"""Every example runs on two ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEADLINE_S = 180.0


@pytest.mark.parametrize(
    "example", sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py"))
)
def test_the_example_runs(example: str, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "horovod.runner.cli", "-np", "2"]
    result = subprocess.run(
        [*launcher, sys.executable, str(EXAMPLES / example), "--smoke"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "[0]<stdout>:" in result.stdout
