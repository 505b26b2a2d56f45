"""The examples run as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/ray"


def test_digits_by_an_executor(cluster: Any) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "digits_executor.py", "--epochs", "4"],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    assert [f"'epoch': {epoch}" in done.stdout for epoch in range(4)] == [True] * 4
    accuracy = re.search(r"test accuracy: ([\d.]+)% on 2 rank", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 80
