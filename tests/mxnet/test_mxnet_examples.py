"""The examples for MXNet run, alone and on two ranks, and learn."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "mxnet"
LAUNCHER = (sys.executable, "-m", "horovod.runner.cli", "-np", 2)


@pytest.mark.parametrize("name", ["digits_gluon.py", "digits_module.py"])
def test_an_example_learns(name: str, run_python: Callable[..., Any], tmp_path: Path) -> None:
    checkpoint = ("--checkpoint", tmp_path / "new folder" / "digits")
    alone = run_python(EXAMPLES / name, "--smoke", *checkpoint)
    together = run_python(EXAMPLES / name, "--epochs", 12, *checkpoint, launcher=LAUNCHER)
    for job, least in ((alone, 10.0), (together, 96.0)):
        assert job.returncode == 0, job.stdout + job.stderr
        (accuracy,) = re.findall(r"test accuracy: ([\d.]+)%", job.stdout)  # one rank speaks for all
        assert float(accuracy) >= least
    assert list((tmp_path / "new folder").iterdir())
