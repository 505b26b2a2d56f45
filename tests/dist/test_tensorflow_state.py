"""Variables, objects, sessions, optimizers of tf.compat.v1 and SyncBatchNormalization on ranks."""

from __future__ import annotations

import pytest

import horovod

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow_batch_norm_cases
import tensorflow_sessions
import tensorflow_state_cases


@pytest.fixture(scope="module")
def failures() -> list[dict[str, str]]:
    """Per rank, what its failed cases raised; one job runs them all."""
    return horovod.run(tensorflow_batch_norm_cases.run_all, num_proc=3)


@pytest.mark.parametrize("name", tensorflow_state_cases.CASES)
def test_on_three_ranks(name: str, failures: list[dict[str, str]]) -> None:
    failed = {rank: of_rank[name] for rank, of_rank in enumerate(failures) if name in of_rank}
    assert not failed, "\n".join(f"rank {rank}: {text}" for rank, text in failed.items())


def test_sessions_of_scripts_that_turn_version_2_off() -> None:
    names = ["adam", "three passes", "words as dense ones"]
    for found in horovod.run(tensorflow_sessions.compare_as_version_1, (names,), num_proc=2):
        for name, (weights, expected) in found.items():
            for mine, other in zip(weights, expected, strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-9, err_msg=name)
