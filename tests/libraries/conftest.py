"""Tests of libraries around Horovod: `make test-libraries`. Without them they end at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    python = Path(sys.prefix) / "libraries" / "bin" / "python"
    if not python.exists():
        pytest.exit(
            f"tests/libraries needs {python}: `make test-libraries` installs it, and runs them",
            returncode=5,
        )
