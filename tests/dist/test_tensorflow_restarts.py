"""Traced functions read the ranks of the job in which they run, not of the one that traced them."""

from __future__ import annotations

import pytest

import horovod

pytest.importorskip("tensorflow")

from tensorflow_restarts import run_before_and_after


def test_traced_functions_outlive_their_job() -> None:
    for rank, (alone, both, swapped, at_last) in enumerate(
        horovod.run(run_before_and_after, num_proc=2)
    ):
        own = 2.0 + 4.0 * rank
        # Of the tape, of the optimizer, and the gradient of a local variable.
        every = [4.0, 4.0, own / 2.0]
        assert alone["every"] == at_last["every"] == [own] * 3
        assert both["every"] == swapped["every"] == every
        assert [job["aggregated"] for job in (alone, both, swapped)] == [[12.0], [6.0], [6.0]]
        # Of the only value nothing remains, of two their sign.
        assert alone["normalized"] == at_last["normalized"] == [0.0]
        assert both["normalized"] == pytest.approx([2.0 * rank - 1.0], abs=1e-3)
        # The set holds rank 0 alone, which is another process each time.
        for job in (both, swapped):
            assert job["some"] == [own] * 3
            assert job["some normalized"] == [0.0]
