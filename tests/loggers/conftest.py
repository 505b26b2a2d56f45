"""Tests of hvd.log with the libraries that it writes to: `make test-loggers`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
sys.path += [str(FOLDER), str(FOLDER.parent / "contract")]

from environments import Environment, exit_without, run_python, run_ranks  # noqa: E402, F401

ENVIRONMENT = Environment("loggers", Path(sys.prefix) / "loggers" / "bin" / "python")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    exit_without(ENVIRONMENT)


@pytest.fixture(scope="session")
def environment() -> Environment:
    return ENVIRONMENT
