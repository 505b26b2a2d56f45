"""The examples run: one as a user runs it, those of estimators in the session of all tests."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/spark"
EXAMPLES_IN_SESSION = (
    "digits_torch",
    "digits_keras",
    "digits_lightning",
    "pipeline",
    "databricks_notebook",
)


def accuracy_in(text: str) -> float:
    """What an example says of its tests, in percent."""
    accuracy = re.search(r"test accuracy: ([\d.]+)% on 2 rank", text)
    assert accuracy is not None
    return float(accuracy[1])


def test_run() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "digits_run.py", "--master", "local[2]", "--epochs", "4"],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    assert accuracy_in(done.stdout) > 80


@pytest.mark.parametrize("name", EXAMPLES_IN_SESSION)
def test_estimators(
    name: str,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name == "digits_lightning":
        pytest.importorskip("lightning")
    # To start a session for each of them would take most of the time of all tests.
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    monkeypatch.setenv("STORE", str(tmp_path))  # of the notebook
    monkeypatch.setattr(sys, "argv", [name, "--epochs", "4", "--store", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert accuracy_in(capsys.readouterr().out) > 80
