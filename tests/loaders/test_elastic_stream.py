"""A stream of three shards, filtered while it is read, on 4, then 3, then 2 ranks by losses."""

from __future__ import annotations

import multiprocessing

import streaming_worker
from process_fleet import opened_fleet
from streaming_worker import BATCH_SIZE, EPOCHS, LENGTH

from horovod._job.records import EventKind

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["horovod.torch", "torch._dynamo", "datasets"])


def test_each_sample_once_when_ranks_are_killed() -> None:
    with opened_fleet(PROCESSES, streaming_worker.main) as fleet:
        workers = fleet.start(*({"dies": dies} for dies in (None, 0, 1, None)))
        fleet.begin(workers)
        left = list(workers)
        for dies in workers[1:3]:
            fleet.await_event(EventKind.GONE, dies)
            left.remove(dies)
            fleet.begin(left)
        for process in left:
            report = process.told("times")
            assert report["times"] == [EPOCHS * bool(each % 3) for each in range(LENGTH)]
            sizes = report["sizes"]
            # What was trained after the last commits was trained again by fewer ranks.
            assert sizes[:6] == [4] * 3 + [3] * 3
            assert set(sizes[6:]) == {2}
            samples = 2 * LENGTH // 3 * EPOCHS
            assert samples <= sum(sizes) * BATCH_SIZE <= samples + 2 * EPOCHS * BATCH_SIZE
            process.ends(0)
