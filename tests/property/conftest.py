"""Makes the modules of this folder importable; the jobs that run the examples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

import profiles
from worlds import Worlds

if TYPE_CHECKING:
    from collections.abc import Iterator

profiles.register()


@pytest.fixture(name="worlds", scope="module")
def _worlds() -> Iterator[Worlds]:
    worlds = Worlds()
    yield worlds
    worlds.close()
