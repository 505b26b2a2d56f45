"""The examples for JAX run, alone and on two ranks, and learn."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pages import files_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "jax"
EXAMPLE = EXAMPLES / "digits.py"
LAUNCHER = (sys.executable, "-m", "horovod.runner.cli", "-np", 2)


def test_the_example_learns(run_python: Callable[..., Any], tmp_path: Path) -> None:
    checkpoint = ("--checkpoint", tmp_path / "new folder")
    alone = run_python(EXAMPLE, "--smoke", *checkpoint)
    together = run_python(EXAMPLE, "--epochs", 12, *checkpoint, launcher=LAUNCHER)
    for job, least in ((alone, 60.0), (together, 96.0)):
        assert job.returncode == 0, job.stdout + job.stderr
        (accuracy,) = re.findall(r"test accuracy: ([\d.]+)%", job.stdout)  # one rank speaks for all
        assert float(accuracy) >= least
    assert "goes on after epoch 2" in together.stdout  # where the other run has ended
    assert "epoch  2" not in together.stdout


def test_the_elastic_example_learns(run_python: Callable[..., Any]) -> None:
    launcher = (*LAUNCHER, "--min-np", 1)
    job = run_python(EXAMPLES / "pytree_elastic.py", "--epochs", 6, launcher=launcher)
    assert job.returncode == 0, job.stdout + job.stderr
    (accuracy,) = re.findall(r"test accuracy: ([\d.]+)%", job.stdout)
    assert float(accuracy) >= 93


def test_the_program_of_the_guide_learns(
    run_python: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # it saves its model
    program = tmp_path / "train_jax.py"
    program.write_text(files_of("docs/guide.md")[program.name])
    job = run_python(program, launcher=LAUNCHER)
    assert job.returncode == 0, job.stdout + job.stderr
    for rank in range(2):
        assert re.search(rf"rank {rank} of 2: loss 0\.0\d*", job.stdout), job.stdout
