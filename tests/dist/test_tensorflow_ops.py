"""What is special about TensorFlow: graphs, slices, variables, names, classes of errors."""

from __future__ import annotations

import pytest

import horovod

pytest.importorskip("tensorflow")

from tensorflow_ranks import SCENARIOS, run_scenarios


@pytest.fixture(scope="module", name="results")
def _results() -> list[dict[str, str]]:
    """Of every rank; one job for all, as starting one takes longer than they do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
        return horovod.run(run_scenarios, num_proc=2)


@pytest.mark.parametrize("name", [scenario.__name__ for scenario in SCENARIOS])
def test_scenario(name: str, results: list[dict[str, str]]) -> None:
    for rank, mine in enumerate(results):
        assert mine.get(name, "an earlier one failed") == "", f"rank {rank}: {mine.get(name)}"
