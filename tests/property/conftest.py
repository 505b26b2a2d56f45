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

    from thread_ranks import ThreadRanks

profiles.register()


@pytest.fixture(name="worlds", scope="module")
def _worlds() -> Iterator[Worlds]:
    worlds = Worlds()
    yield worlds
    worlds.close()


@pytest.fixture(name="jobs", scope="module")
def _jobs() -> Iterator[dict[int, ThreadRanks]]:
    """Jobs by their numbers of ranks, which a test makes when it needs them."""
    jobs: dict[int, ThreadRanks] = {}
    yield jobs
    for job in jobs.values():
        job.close("the tests are over")
