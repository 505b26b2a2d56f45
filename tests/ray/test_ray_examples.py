"""The examples run as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/ray"


def run(cluster: Any, name: str, *words: object) -> str:
    """What an example prints that has learned."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "--epochs", "4", *map(str, words)],
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    accuracy = re.search(r"test accuracy: ([\d.]+)% on 2 rank", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 80
    return done.stdout


@pytest.mark.parametrize("name", ["digits_executor", "digits_elastic"])
def test_digits(cluster: Any, name: str) -> None:
    printed = run(cluster, name)
    assert [f"'epoch': {epoch}" in printed for epoch in range(4)] == [True] * 4


def test_digits_with_ray_train(cluster: Any, tmp_path: Path) -> None:
    run(cluster, "digits_trainer", "--storage", tmp_path)
    assert len(list(tmp_path.glob("*/checkpoint_*/model.pt"))) == 4


def test_a_search_with_tune(cluster: Any, tmp_path: Path) -> None:
    printed = run(cluster, "tune", "--storage", tmp_path, "--lr", 0.0001, 0.02)
    assert "with a learning rate of 0.02" in printed
