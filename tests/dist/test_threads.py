"""A training between real processes whose other threads submit beside it."""

from __future__ import annotations

import pytest
from busy_training import NUM_STEPS, train_alone, train_beside_busy_threads

import horovod


def test_threads_that_submit_beside_500_steps_of_training() -> None:
    assert NUM_STEPS == 500
    everyones = horovod.run(train_beside_busy_threads, num_proc=3)
    expected = train_alone(3)
    for values, alive in everyones:
        assert values == pytest.approx(expected, rel=1e-9)
        # What lives at such a moment differs by what the threads are at, not by what is behind.
        assert max(alive[1:]) < alive[0] + 50, alive
