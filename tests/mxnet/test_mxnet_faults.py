"""What programs for MXNet hear when an operation fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from environments import said_by

if TYPE_CHECKING:
    from collections.abc import Callable

ENGINES = ["ThreadedEnginePerDevice", "NaiveEngine"]


def test_all_that_depends_on_a_dead_rank_says_so(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(3, "mxnet_faulty_rank.py", "dies_while_arrays_are_reduced")
    assert "rank 1 on localhost was killed by SIGKILL" in job.stderr, job.stdout + job.stderr
    assert said_by(job, 0) == said_by(job, 2) == ["told"], job.stdout + job.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_who_waits_for_a_dead_rank_hears_of_it(engine: str, run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "mxnet_faulty_rank.py", "dies_while_others_gather", MXNET_ENGINE_TYPE=engine)
    assert said_by(job, 0) == ["told"], job.stdout + job.stderr


def test_a_disagreement_concerns_what_depends_on_it(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "mxnet_faulty_rank.py", "disagrees")
    assert job.returncode == 0, job.stdout + job.stderr
    assert said_by(job, 0) == said_by(job, 1) == ["told"]
    # MXNet has nothing to add when the process ends.
    assert "Exception ignored" not in job.stderr, job.stderr


def test_a_process_ends_with_work_in_flight(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "mxnet_faulty_rank.py", "leaves_work_behind")
    assert said_by(job, 0) == said_by(job, 1) == ["told"], job.stdout + job.stderr
    assert "a collective failed, and nobody waited for its result" in job.stderr
    assert "Exception ignored" not in job.stderr, job.stderr
