"""The latency benchmark, which compiles a program beside the native tests: `make test` runs it.

Not with the other benchmarks, as those run while the native tests are built in the same folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import horovod

ROOT = Path(__file__).resolve().parents[2]
SOURCE = str(Path(horovod.__file__).resolve().parent.parent)


def test_latency_benchmark() -> None:
    if not (ROOT / "build" / "native" / "build.ninja").exists():
        pytest.skip("the native tests have not been built: make test-native")
    words = ("--bytes", "4", "--rounds", "1", "--seconds-per-turn", "0.01")
    ended = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "latency.py", *words],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"\|  4 B \| +[\d.]+ / [\d.]+ µs", ended.stdout)
