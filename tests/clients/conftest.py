"""Tests of libraries over torch.distributed: `make test-clients`. Without them they end at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))
# Libraries import what they import on their users' machines.
_OTHERS = [
    path for path in os.environ["PYTHONPATH"].split(os.pathsep) if "quick_imports" not in path
]
os.environ["PYTHONPATH"] = os.pathsep.join(_OTHERS)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    python = Path(sys.prefix) / "clients" / "bin" / "python"
    if not python.exists():
        pytest.exit(
            f"tests/clients needs {python}: `make test-clients` installs it, and runs them",
            returncode=5,
        )
