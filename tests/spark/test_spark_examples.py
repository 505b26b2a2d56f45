"""The examples run as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/spark"


def accuracy_of(name: str, *words: object) -> float:
    """What an example says of its tests, in percent."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "--master", "local[2]", *map(str, words)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    accuracy = re.search(r"test accuracy: ([\d.]+)% on 2 rank", done.stdout)
    assert accuracy is not None
    return float(accuracy[1])


def test_run() -> None:
    assert accuracy_of("digits_run", "--epochs", 4) > 80


@pytest.mark.parametrize("name", ["digits_torch", "digits_keras", "digits_lightning", "pipeline"])
def test_estimators(name: str, tmp_path: Path) -> None:
    if name == "digits_lightning":
        pytest.importorskip("lightning")
    assert accuracy_of(name, "--epochs", 4, "--store", tmp_path) > 80
