"""Elastic training with real processes of TensorFlow, driven by a job without any launcher."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from horovod._job import Assignment, Worker
from horovod._job.job import Job, open_job

if TYPE_CHECKING:
    from collections.abc import Iterator

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

PATIENCE_S = 240.0

# Forks processes that have imported everything, which takes most of their time.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["keras", "horovod.tensorflow.keras"])


def work(environ: dict[str, str], mode: str, pipe: Any) -> None:
    """The whole process; this one itself needs no TensorFlow."""
    import tensorflow_elastic_samples
    import tensorflow_elastic_worker

    what, _, mode = mode.partition(": ")
    worker = tensorflow_elastic_samples if what == "samples" else tensorflow_elastic_worker
    worker.main(environ, mode, pipe)


class Process:
    """A worker, and what it tells."""

    def __init__(self, job: Job, slot: int, mode: str) -> None:
        self.worker = Worker(job.new_identity("a"), "a", slot)
        told = Assignment(
            job.where, None, self.worker.identity, "a", slot=slot, elastic=True, min_size=2
        )
        self._reports, sender = PROCESSES.Pipe(duplex=False)
        self.process = PROCESSES.Process(target=work, args=(told.variables(), mode, sender))
        self.process.start()
        sender.close()

    def told(self, what: str) -> dict[str, Any]:
        """The next report with a field; what comes before it is of no interest."""
        deadline = time.monotonic() + PATIENCE_S
        while self._reports.poll(max(0.0, deadline - time.monotonic())):
            report: dict[str, Any] = self._reports.recv()
            if what in report:
                return report
        raise AssertionError(f"{self.worker.identity} did not tell {what!r}")

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

    def start(self, count: int, mode: str) -> list[Process]:
        """Starts workers in the next slots."""
        first = len(self.processes)
        new = [Process(self.job, slot, mode) for slot in range(first, first + count)]
        self.processes += new
        return new

    def publish(self, workers: list[Process]) -> None:
        """Begins a generation with workers when they are ready."""
        wanted = {each.worker.identity for each in workers}
        self.job.wait_until(lambda job: wanted <= set(job.available), PATIENCE_S)
        self.job.begin_generation([each.worker for each in workers])

    def begin(self, workers: list[Process]) -> list[dict[str, Any]]:
        """The same; returns what they tell, all of it equal."""
        self.publish(workers)
        reports = sorted((each.told("begins") for each in workers), key=lambda each: each["rank"])
        assert [each["rank"] for each in reports] == list(range(len(workers)))
        for report in reports:
            assert report["size"] == len(workers)
            for field in ("generation", "begins", "digest"):
                assert report[field] == reports[0][field], (field, reports)
        return reports


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with open_job() as job:
        fleet = Fleet(job)
        try:
            yield fleet
        finally:
            for process in fleet.processes:
                process.close()


@pytest.mark.parametrize("mode", ["fit", "function", "session"])
def test_a_worker_is_killed_and_another_one_comes(fleet: Fleet, mode: str) -> None:
    mode = f"training: {mode}"
    first, *survivors = fleet.start(3, mode)
    assert fleet.begin([first, *survivors])[0]["begins"] == (0, 0)
    for each in survivors:
        each.told("trains")
    os.kill(first.process.pid or 0, signal.SIGKILL)
    fleet.job.wait_until(lambda job: first.worker.identity not in job.available, PATIENCE_S)
    after_loss = fleet.begin(survivors)[0]
    assert after_loss["begins"] > (0, 0)
    for each in survivors:
        each.told("trains")
    workers = [*survivors, *fleet.start(1, mode)]
    # The state of the newcomer is that of the others to the bit.
    assert fleet.begin(workers)[0]["begins"] > after_loss["begins"]
    ends = [each.told("ends") for each in workers]
    assert len({(each["ends"], each["digest"]) for each in ends}) == 1
    for each in workers:
        each.process.join(PATIENCE_S)
        assert each.process.exitcode == 0


@pytest.mark.parametrize("mode", ["fit", "function", "session"])
def test_a_worker_leaves_and_another_one_dies_in_a_reset_callback(fleet: Fleet, mode: str) -> None:
    mode = f"training: {mode} 3"
    leaving, stays = fleet.start(2, mode)
    (dies,) = fleet.start(1, f"{mode} dies")
    fleet.begin([leaving, stays, dies])
    for each in (leaving, stays, dies):
        each.told("trains")
    os.kill(leaving.process.pid or 0, signal.SIGTERM)
    leaving.process.join(PATIENCE_S)
    assert leaving.process.exitcode == 0
    after_leave = fleet.begin([stays, dies])[0]
    assert after_leave["begins"] > (0, 0)
    for each in (stays, dies):
        each.told("trains")
    (newcomer,) = fleet.start(1, mode)
    fleet.publish([stays, dies, newcomer])
    dies.process.join(PATIENCE_S)
    fleet.job.wait_until(lambda job: dies.worker.identity not in job.available, PATIENCE_S)
    assert fleet.begin([stays, newcomer])[0]["begins"] > after_leave["begins"]
    ends = [each.told("ends") for each in (stays, newcomer)]
    assert ends[0]["digest"] == ends[1]["digest"]
    for each in (stays, newcomer):
        each.process.join(PATIENCE_S)
        assert each.process.exitcode == 0


@pytest.mark.parametrize("mode", ["fit", "function"])
def test_a_mistake_of_the_program_is_no_reset(fleet: Fleet, mode: str) -> None:
    workers = fleet.start(2, f"training: {mode} wrong")
    fleet.begin(workers)
    for each in workers:
        assert "wrong" in each.told("error")["error"]
        each.process.join(PATIENCE_S)
        assert each.process.exitcode == 3


@pytest.mark.parametrize("style", ["loops", "fit"])
def test_each_sample_once_whoever_dies_and_comes(fleet: Fleet, style: str) -> None:
    style = f"samples: {style}"
    workers = [*fleet.start(1, style), *fleet.start(1, f"{style} dies"), *fleet.start(1, style)]
    fleet.publish(workers)
    dead = workers.pop(1)
    dead.process.join(PATIENCE_S)
    fleet.job.wait_until(lambda job: dead.worker.identity not in job.available, PATIENCE_S)
    fleet.publish(workers)
    workers += fleet.start(1, style)
    for each in workers[:2]:
        assert each.told("waits")["waits"] == 1
    fleet.publish(workers)
    reports = [each.told("times") for each in workers]
    for report in reports:
        assert report["times"] == [3] * 96
        # The second epoch begins with 2 ranks and ends with 3, which stay.
        assert report["sizes"][-17:] == [2] * 3 + [3] * 6 + [3] * 8
    assert [each["traces"] for each in reports] == [1, 1, 1], "what is compiled was lost"
    for each in workers:
        each.process.join(PATIENCE_S)
        assert each.process.exitcode == 0
