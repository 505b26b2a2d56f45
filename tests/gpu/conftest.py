"""Tests on a real GPU: `make test-gpu`. Without one they end at once, and say so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "contract"))
sys.path.append(str(Path(__file__).resolve().parent))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip or "the CPU only"
        pytest.exit(
            "tests/gpu needs a GPU and a PyTorch that can use it: torch.cuda.is_available() is "
            f"False here, PyTorch {torch.__version__} is built for {built}",
            returncode=5,
        )
