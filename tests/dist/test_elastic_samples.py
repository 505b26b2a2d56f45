"""No sample is lost or trained twice when real processes die, come and leave in an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import elastic_samples
import pytest
from elastic_samples import EPOCHS, LENGTH
from process_fleet import Fleet, opened_fleet
from test_elastic_workers import PROCESSES

from horovod._job.records import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with opened_fleet(PROCESSES, elastic_samples.main) as fleet:
        yield fleet


@pytest.mark.parametrize("style", ["simple", "old"])
def test_each_sample_once_whoever_dies_comes_and_leaves(fleet: Fleet, style: str) -> None:
    first, dies, second = fleet.start(
        *({"style": style, "dies": dies} for dies in (False, True, False))
    )
    fleet.begin([first, dies, second])
    fleet.await_event(EventKind.GONE, dies)
    fleet.begin([first, second])
    (newcomer,) = fleet.start({"style": style})
    for process in (first, second):
        assert process.told("waits")["waits"] == 1
    fleet.begin([first, second, newcomer])
    for process in (first, second, newcomer):
        assert process.told("waits")["waits"] == 2
    fleet.begin([second, newcomer])
    fleet.job.dismiss(first.identity, "its host is no longer listed")
    for process in (second, newcomer):
        report = process.told("times")
        assert report["times"] == [EPOCHS] * LENGTH
        # The second epoch begins with 2 ranks and ends with 3; from the third one on there are 2.
        second_epoch, third, fourth = [2] * 3 + [3] * 6, [3] * 3 + [2] * 8, [2] * 12
        assert report["sizes"][-32:] == second_epoch + third + fourth
    for process in (first, second, newcomer):
        process.ends(0)
