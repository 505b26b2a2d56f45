"""Elastic training with real processes of PyTorch, driven by a job without any launcher."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import elastic_worker
import pytest

from horovod._job import Assignment, Worker
from horovod._job.job import Job, open_job
from horovod._job.records import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horovod._job.membership import Membership

# Of which PyTorch may take a good part to be imported, on a busy machine.
PATIENCE_S = 240.0


# Forks processes that have imported everything, which takes a newcomer most of its time.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["horovod.torch", "torch._dynamo"])


class Process:
    """A worker, and what it tells."""

    def __init__(self, job: Job, host: str, slot: int, plan: dict[str, Any]) -> None:
        self.identity = job.new_identity(host)
        self.worker = Worker(self.identity, host, slot)
        told = Assignment(
            job.where, None, self.identity, host, slot=slot, elastic=True, min_size=2, max_size=4
        )
        self._reports, sender = PROCESSES.Pipe(duplex=False)
        self.process = PROCESSES.Process(
            target=elastic_worker.main, args=(told.variables(), plan, sender)
        )
        self.process.start()
        sender.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self.process.pid is not None
        return self.process.pid

    def told(self, what: str) -> dict[str, Any]:
        """The next report with a field; what comes before it is of no interest."""
        deadline = time.monotonic() + PATIENCE_S
        while self._reports.poll(max(0.0, deadline - time.monotonic())):
            report: dict[str, Any] = self._reports.recv()
            if what in report:
                return report
        raise AssertionError(f"{self.identity} did not tell {what!r}")

    def ends(self, code: int) -> None:
        """Waits for its end."""
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == code

    def close(self) -> None:
        """Ends the process if it has not ended."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self._reports.close()


class Fleet:
    """The workers of a job, and its coordinator."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.processes: list[Process] = []

    def start(self, *plans: dict[str, Any]) -> list[Process]:
        """Starts workers on one host, each with its plan, in the next slots."""
        slots = range(len(self.processes), len(self.processes) + len(plans))
        new = [Process(self.job, "a", s, p) for s, p in zip(slots, plans, strict=True)]
        self.processes += new
        return new

    def begin(self, workers: list[Process]) -> Membership:
        """Awaits that workers are ready, and begins a generation with them."""
        wanted = {each.identity for each in workers}
        self.job.wait_until(lambda job: wanted <= set(job.available), PATIENCE_S)
        return self.job.begin_generation([each.worker for each in workers])

    def await_event(self, kind: EventKind, process: Process) -> None:
        """Awaits what a worker tells."""
        while (event := self.job.next_event(PATIENCE_S)) is not None:
            if (event.kind, event.worker.identity) == (kind, process.identity):
                return
        raise AssertionError(f"{process.identity} was never {kind}")


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with open_job() as job:
        fleet = Fleet(job)
        try:
            yield fleet
        finally:
            for process in fleet.processes:
                process.close()


def begun(workers: list[Process], synced: bool = True) -> list[dict[str, Any]]:
    """What workers tell at the beginning of their next generation, after checks.

    Args:
        workers: all of it.
        synced: whether somebody needed the state. Statistics of batches are those of a rank.
    """
    reports = sorted((each.told("begins") for each in workers), key=lambda each: each["rank"])
    assert [each["rank"] for each in reports] == list(range(len(workers)))
    for report in reports:
        assert report["size"] == report["total"] == len(workers)
        assert report["told"] == [str(report["rank"]), str(report["size"])]
        assert report["limits"] == (2, 4)
        for field in ("generation", "begins", "digest", "rate", "log", "buffers"):
            if field == "buffers" and not synced:
                continue
            assert report[field] == reports[0][field], (field, reports)
        assert report["log"] == report["begins"]
    return reports


def trained(workers: list[Process]) -> None:
    """Waits until some steps are done in the first generation."""
    assert begun(workers)[0]["begins"] == 0
    for worker in workers:
        worker.told("trained")


def ended(workers: list[Process]) -> None:
    """All come to the same end."""
    reports = [each.told("ends") for each in workers]
    assert len({(each["ends"], each["digest"]) for each in reports}) == 1
    assert all(each["same"] for each in reports)
    for worker in workers:
        worker.ends(0)


def test_a_killed_worker_costs_the_steps_since_the_commit(
    fleet: Fleet, record_property: Any
) -> None:
    workers = fleet.start(*[{"until": 1}] * 3)
    fleet.begin(workers)
    trained(workers)
    lost, survivors = workers[0], workers[1:]
    killed_at_s = time.monotonic()
    os.kill(lost.pid, signal.SIGKILL)
    fleet.await_event(EventKind.GONE, lost)
    fleet.begin(survivors)
    reports = begun(survivors)
    assert reports[0]["begins"] > 2
    seconds = max(report["at_s"] for report in reports) - killed_at_s
    record_property("seconds from the signal to the next allreduce", seconds)
    print(f"{seconds:.3f} s from the signal to the end of the next allreduce")
    ended(survivors)


def test_a_newcomer_gets_what_the_others_have_reached(fleet: Fleet) -> None:
    plan = {"until": 1, "commits": False}
    workers = fleet.start(plan, plan)
    fleet.begin(workers)
    trained(workers)
    (newcomer,) = fleet.start(plan)
    # It has made its model and optimizer, and the others do not even know that it is there.
    made = newcomer.told("made")
    assert (made["rank"], made["size"], made["generation"]) == (2, 3, 0)
    assert newcomer.identity not in fleet.job.available
    fleet.begin([*workers, newcomer])
    assert begun([*workers, newcomer])[0]["begins"] > 0
    ended([*workers, newcomer])


def test_process_sets_follow_a_change(fleet: Fleet) -> None:
    plan = {"until": 1, "sets": True}
    workers = fleet.start(plan, plan, plan)
    fleet.begin(workers)
    trained(workers)
    everybody = [*workers, *fleet.start(plan)]
    fleet.begin(everybody)
    assert [report["sets"] for report in begun(everybody)] == [[[0, 2]], [], [[0, 2]], []]
    ended(everybody)


def test_a_worker_that_is_removed_ends_and_costs_nothing(fleet: Fleet) -> None:
    plan = {"until": 1, "commits": False}
    workers = fleet.start(plan, plan, plan)
    fleet.begin(workers)
    trained(workers)
    fleet.begin(workers[:2])
    fleet.job.dismiss(workers[2].identity, "its host is no longer listed")
    assert begun(workers[:2], synced=False)[0]["begins"] > 0
    workers[2].ends(0)
    ended(workers[:2])


def test_a_worker_leaves_after_sigterm(fleet: Fleet) -> None:
    plan = {"until": 1, "commits": False}
    workers = fleet.start(plan, plan, plan)
    fleet.begin(workers)
    trained(workers)
    os.kill(workers[0].pid, signal.SIGTERM)
    fleet.await_event(EventKind.LEAVING, workers[0])
    fleet.await_event(EventKind.LEFT, workers[0])
    workers[0].ends(0)
    fleet.begin(workers[1:])
    assert begun(workers[1:], synced=False)[0]["begins"] > 0
    ended(workers[1:])


@pytest.mark.parametrize("place", ["sync", "callback"])
def test_a_loss_during_a_change_is_one_more_change(fleet: Fleet, place: str) -> None:
    workers = fleet.start({"until": 2, "dies": [place, 1]}, {"until": 2}, {"until": 2})
    fleet.begin(workers)
    trained(workers)
    newcomer = fleet.start({"until": 2})[0]
    fleet.begin([*workers, newcomer])
    fleet.await_event(EventKind.GONE, workers[0])
    remaining = [*workers[1:], newcomer]
    fleet.begin(remaining)
    assert begun(remaining)[0]["begins"] > 0
    ended(remaining)


def test_a_member_that_never_connects_is_one_more_change(fleet: Fleet) -> None:
    workers = fleet.start(*[{"until": 2}] * 2)
    fleet.begin(workers)
    trained(workers)
    newcomer = fleet.start({"until": 2})[0]
    fleet.job.wait_until(lambda job: newcomer.identity in job.available, PATIENCE_S)
    os.kill(newcomer.pid, signal.SIGSTOP)  # so that it takes no part before it dies
    fleet.begin([*workers, newcomer])
    os.kill(newcomer.pid, signal.SIGKILL)
    fleet.await_event(EventKind.GONE, newcomer)
    fleet.begin(workers)
    assert begun(workers, synced=False)[0]["generation"] == 2
    ended(workers)


def test_a_mistake_of_the_program_is_no_reset(fleet: Fleet) -> None:
    workers = fleet.start({"until": 0, "fails": True}, {"until": 0, "fails": True})
    fleet.begin(workers)
    for worker in workers:
        assert "wrong" in worker.told("error")["error"]
        worker.ends(3)
