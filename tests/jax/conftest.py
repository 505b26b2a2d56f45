"""Tests on JAX: `make test-jax`. Without its environment they end at once."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
sys.path += [str(FOLDER), str(FOLDER.parent / "contract")]

from environments import Environment, exit_without, run_python, run_ranks  # noqa: E402, F401

NAME = os.environ.get("JAX_ENVIRONMENT", "jax")
ENVIRONMENT = Environment("jax", Path(sys.prefix) / NAME / "bin" / "python")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    exit_without(ENVIRONMENT)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Ranks leave what they have compiled in one folder: see jax_programs.py."""
    programs = str(tmp_path_factory.mktemp("programs"))
    return replace(ENVIRONMENT, variables={"HVD_TEST_JAX_PROGRAMS": programs})
