"""Tests of Keras on its backends: `make test-keras-backends`. Without its environment they end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
sys.path += [str(FOLDER), str(FOLDER.parent / "contract")]

from environments import Environment, exit_without, run_python, run_ranks  # noqa: E402, F401

# The matrix names other environments: tests/matrix.
NAME = os.environ.get("KERAS_ENVIRONMENT", "keras_backends")
ENVIRONMENT = Environment("keras_backends", Path(sys.prefix) / NAME / "bin" / "python")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    exit_without(ENVIRONMENT)


@pytest.fixture(scope="session")
def environment() -> Environment:
    return ENVIRONMENT
