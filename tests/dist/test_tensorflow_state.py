"""Variables, objects, sessions, optimizers of tf.compat.v1 and SyncBatchNormalization on ranks."""

from __future__ import annotations

import pytest

import horovod

pytest.importorskip("tensorflow")

import tensorflow_batch_norm_cases
import tensorflow_state_cases


@pytest.fixture(scope="module")
def failures() -> list[dict[str, str]]:
    """Per rank, what its failed cases raised; one job runs them all."""
    return horovod.run(tensorflow_batch_norm_cases.run_all, num_proc=3)


@pytest.mark.parametrize("name", tensorflow_state_cases.CASES)
def test_on_three_ranks(name: str, failures: list[dict[str, str]]) -> None:
    failed = {rank: of_rank[name] for rank, of_rank in enumerate(failures) if name in of_rank}
    assert not failed, "\n".join(f"rank {rank}: {text}" for rank, text in failed.items())
