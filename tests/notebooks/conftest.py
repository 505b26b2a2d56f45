"""Tests of ``horovod.run`` in a notebook: `make test-notebooks`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.append(str(Path(__file__).resolve().parent))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Whoever asks for these tests wants to hear that nothing was tested."""
    if (
        importlib.util.find_spec("nbclient") is None
        or importlib.util.find_spec("ipykernel") is None
    ):
        pytest.exit(
            "tests/notebooks needs ipykernel and nbclient: `make test-notebooks` installs them, "
            "and runs them",
            returncode=5,
        )


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A kernel of a notebook, for the cells of all tests of a file."""
    from kernels import Kernel

    with Kernel(tmp_path_factory.mktemp("notebook")) as kernel:
        yield kernel
