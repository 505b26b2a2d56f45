"""Tests on JAX: `make test-jax`. Without its environment they end at once."""

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

PYTHON = Path(sys.prefix) / os.environ.get("JAX_ENVIRONMENT", "jax") / "bin" / "python"
DEADLINE_S = 240.0


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    if not PYTHON.exists():
        pytest.exit(
            f"tests/jax needs {PYTHON}: `make test-jax` installs it, and runs them",
            returncode=5,
        )


@pytest.fixture(name="programs", scope="session")
def _programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ranks leave what they have compiled: see jax_programs.py."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def run_python(tmp_path: Path, programs: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of JAX's Python, or under a launcher in front of it."""
    # Horovod alone: beside it lie other packages.
    (tmp_path / "horovod").symlink_to(Path(horovod.__file__).parent)

    def run(
        *command: object, launcher: tuple[object, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "HVD_TEST_JAX_PROGRAMS": str(programs),
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
