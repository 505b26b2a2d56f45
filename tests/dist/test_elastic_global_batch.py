"""The global batch stays the same when real processes die: 4, then 3, then 2 ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import global_batch_worker
import pytest
from global_batch_worker import EPOCHS, RATE, SIZES_OF_STEPS, train_alone
from process_fleet import Fleet, opened_fleet
from test_elastic_workers import PROCESSES

from horovod._job.records import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

SEED = 100


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with opened_fleet(PROCESSES, global_batch_worker.main) as fleet:
        yield fleet


def test_four_three_and_two_ranks_take_the_same_steps(fleet: Fleet) -> None:
    # With 3 ranks a step has two passes: batch 17 is in the middle of the ninth step.
    deaths = [(0, 1, 5), (1, 2, 17), None, None]
    first, second, *others = fleet.start(*({"seed": SEED, "dies": dies} for dies in deaths))
    fleet.begin([first, second, *others])
    fleet.await_event(EventKind.GONE, first)
    fleet.begin([second, *others])
    fleet.await_event(EventKind.GONE, second)
    fleet.begin(others)
    reports = [process.told("loss") for process in others]
    for process in others:
        process.ends(0)
    undisturbed = [train_alone(SEED + 1000 * run) for run in range(5)]
    losses = [loss for loss, _ in undisturbed]
    for report in reports:
        # Each sample once in an epoch: those of the last step of an epoch count more in its mean.
        assert report["times"] == pytest.approx(undisturbed[0][1], rel=1e-5)
        assert [samples for _, samples in report["steps"]] == SIZES_OF_STEPS * EPOCHS
        ranks = [size for size, _ in report["steps"]]
        assert ranks == sorted(ranks, reverse=True)
        assert set(ranks) == {2, 3, 4}
        assert report["rate"] == RATE
        # The same order gives the same loss, but for rounding; other orders say what is usual.
        assert report["loss"] == pytest.approx(losses[0], rel=1e-4)
        assert min(losses) * 0.999 <= report["loss"] <= max(losses) * 1.001
