"""Many operations of one graph at once, in orders that differ between the ranks."""

from __future__ import annotations

import pytest

import horovod

pytest.importorskip("tensorflow")

from tensorflow_ranks import run_shuffled_steps

NUM_GRADIENTS = 161
NUM_STEPS = 1000


def test_gradients_in_shuffled_order_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    results = horovod.run(run_shuffled_steps, (NUM_GRADIENTS, NUM_STEPS), num_proc=2)
    assert results == [NUM_STEPS] * 2


def test_the_only_thread_waits_briefly_for_what_others_run_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    results = horovod.run(run_shuffled_steps, (8, 20, True), num_proc=2)
    assert results == [20] * 2
