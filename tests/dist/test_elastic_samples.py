"""No sample is lost or trained twice when real processes die, come and leave in an epoch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import elastic_samples
import pytest
from elastic_samples import EPOCHS, LENGTH, PATIENCE_S
from test_elastic_workers import PROCESSES

from horovod._job import Assignment, Worker
from horovod._job.job import Job, open_job
from horovod._job.records import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator


class Fleet:
    """The workers of a job on one host."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.workers: list[Worker] = []
        self.processes: list[Any] = []
        self._pipes: list[Any] = []

    def start(self, **plan: Any) -> None:
        """Starts a worker in the next slot."""
        worker = Worker(self.job.new_identity("a"), "a", len(self.workers))
        told = Assignment(
            self.job.where, None, worker.identity, "a", slot=worker.slot, elastic=True,
            min_size=2, max_size=4,
        )  # fmt: skip
        pipe, sender = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(
            target=elastic_samples.main, args=(told.variables(), plan, sender)
        )
        process.start()
        sender.close()
        self.workers.append(worker)
        self.processes.append(process)
        self._pipes.append(pipe)

    def begin(self, *slots: int) -> None:
        """Awaits that workers are ready, and begins a generation with them."""
        workers = [self.workers[slot] for slot in slots]
        wanted = {worker.identity for worker in workers}
        self.job.wait_until(lambda job: wanted <= set(job.available), PATIENCE_S)
        self.job.begin_generation(workers)

    def told(self, slot: int, what: str) -> dict[str, Any]:
        """The next report of a worker with a field."""
        deadline = time.monotonic() + PATIENCE_S
        while self._pipes[slot].poll(max(0.0, deadline - time.monotonic())):
            report: dict[str, Any] = self._pipes[slot].recv()
            if what in report:
                return report
        raise AssertionError(f"worker {slot} did not tell {what!r}")

    def await_loss(self, slot: int) -> None:
        """Awaits the death of a worker."""
        while (event := self.job.next_event(PATIENCE_S)) is not None:
            if (event.kind, event.worker) == (EventKind.GONE, self.workers[slot]):
                return
        raise AssertionError(f"worker {slot} did not die")

    def close(self) -> None:
        """Ends what has not ended."""
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            process.kill()
            process.join()
            process.close()
            pipe.close()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with open_job() as job:
        fleet = Fleet(job)
        try:
            yield fleet
        finally:
            fleet.close()


@pytest.mark.parametrize("style", ["simple", "old"])
def test_each_sample_once_whoever_dies_comes_and_leaves(fleet: Fleet, style: str) -> None:
    for dies in (False, True, False):
        fleet.start(style=style, dies=dies)
    fleet.begin(0, 1, 2)
    fleet.await_loss(1)
    fleet.begin(0, 2)
    fleet.start(style=style)
    for slot in (0, 2):
        assert fleet.told(slot, "waits")["waits"] == 1
    fleet.begin(0, 2, 3)
    for slot in (0, 2, 3):
        assert fleet.told(slot, "waits")["waits"] == 2
    fleet.begin(2, 3)
    fleet.job.dismiss(fleet.workers[0].identity, "its host is no longer listed")
    for slot in (2, 3):
        report = fleet.told(slot, "times")
        assert report["times"] == [EPOCHS] * LENGTH
        # The second epoch begins with 2 ranks and ends with 3; from the third one on there are 2.
        second, third, fourth = [2] * 3 + [3] * 6, [3] * 3 + [2] * 8, [2] * 12
        assert report["sizes"][-32:] == second + third + fourth
    for slot in (0, 2, 3):
        fleet.processes[slot].join(PATIENCE_S)
        assert fleet.processes[slot].exitcode == 0
