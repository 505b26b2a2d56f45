"""Fixtures for tests whose ranks need a Python environment of their own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from limited import run_limited

import horovod

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    Run = Callable[..., subprocess.CompletedProcess[str]]

DEADLINE_S = 240.0


@dataclass(frozen=True)
class Environment:
    """Where the ranks of a folder's tests run.

    Attributes:
        framework: names the environment, the folder and the target of make.
        python: of the environment.
        variables: for all of its processes.
    """

    framework: str
    python: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the tests."""
        return Path(__file__).parents[1] / self.framework


def exit_without(environment: Environment) -> None:
    """End the session if there is no environment, so that nobody believes that it was tested."""
    if not environment.python.exists():
        name = environment.framework
        pytest.exit(
            f"tests/{name} needs {environment.python}: `make test-{name.replace('_', '-')}` "
            "installs it, and runs them",
            returncode=5,
        )


@pytest.fixture
def run_python(tmp_path: Path, environment: Environment) -> Run:
    """Runs a command of the environment's Python, or under a launcher in front of it."""
    # Horovod alone: beside it lie other packages.
    (tmp_path / "horovod").symlink_to(Path(horovod.__file__).parent)

    def run(
        *command: object, launcher: tuple[object, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        all_variables = {
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            # A rank that waits in vain ends the test with a report.
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60",
            **environment.variables,
            **variables,
        }
        return run_limited((*launcher, environment.python, *command), all_variables, DEADLINE_S)

    return run


@pytest.fixture
def run_ranks(run_python: Run, environment: Environment) -> Run:
    """Runs a script of the folder on so many ranks."""

    def run(
        size: int, script: str, *arguments: object, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        launcher = (sys.executable, "-m", "horovod.runner.cli", "-np", size)
        return run_python(environment.folder / script, *arguments, launcher=launcher, **variables)

    return run


def said_by(job: subprocess.CompletedProcess[str], rank: int) -> list[str]:
    """Return the lines that a rank of a job printed."""
    prefix = f"[{rank}]<stdout>:"
    return [line.removeprefix(prefix) for line in job.stdout.splitlines() if prefix in line]
