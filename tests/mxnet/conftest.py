"""Tests on MXNet 1.9.1: `make test-mxnet`. Without its environment they end at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import horovod

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

FOLDER = Path(__file__).resolve().parent
sys.path += [str(FOLDER), str(FOLDER.parent / "contract")]

from limited import run_limited  # noqa: E402

PYTHON = Path(sys.prefix) / "mxnet" / "bin" / "python"
DEADLINE_S = 240.0


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    if not PYTHON.exists():
        pytest.exit(
            f"tests/mxnet needs {PYTHON}: `make test-mxnet` installs it, and runs them",
            returncode=5,
        )


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of MXNet's Python, or under a launcher in front of it."""
    # Horovod alone: beside it lie the packages of a newer NumPy.
    (tmp_path / "horovod").symlink_to(Path(horovod.__file__).parent)

    def run(
        *command: object, launcher: tuple[object, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            # A rank that waits in vain ends the test with a report.
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60",
            **variables,
        }
        return run_limited((*launcher, PYTHON, *command), environment, DEADLINE_S)

    return run


@pytest.fixture
def run_ranks(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script of this folder on so many ranks."""

    def run(
        size: int, script: str, *arguments: object, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        launcher = (sys.executable, "-m", "horovod.runner.cli", "-np", size)
        return run_python(FOLDER / script, *arguments, launcher=launcher, **variables)

    return run
