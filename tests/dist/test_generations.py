"""A job changes its membership from 3 to 2 to 4 workers without any launcher."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from horovod._job.environment import with_horovod_on_path
from horovod._job.job import Job, open_job
from horovod._job.records import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parent / "generations_worker.py"
PATIENCE_S = 120.0


class Process:
    """A worker, and what it tells."""

    def __init__(self, job: Job, host: str, slot: int, first: str = "stays") -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), host, str(slot), first],
            env=with_horovod_on_path(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdin is not None
        where = job.where
        told = {"address": where.address, "port": where.port, "secret": where.secret.hex()}
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def told(self) -> dict[str, Any]:
        """The next report."""
        report: dict[str, Any] = json.loads(self._lines.get(timeout=PATIENCE_S))
        return report

    def end(self) -> None:
        """Ends the process if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def started(job: Job, *workers: tuple[str, int, str]) -> Iterator[list[Process]]:
    """Processes that are ready."""
    processes: list[Process] = []
    ready = len(job.available) + len(workers)
    try:
        processes += [Process(job, *worker) for worker in workers]
        job.wait_until(lambda job: len(job.available) == ready, PATIENCE_S)
        yield processes
    finally:
        for process in processes:
            process.end()


def generation(job: Job, processes: list[Process]) -> list[dict[str, Any]]:
    """Begins one with all workers that are ready; returns their reports in the order of ranks."""
    # Not in the order of their arrival, which is of no interest here.
    workers = sorted(job.available.values(), key=lambda worker: (worker.host, worker.slot))
    membership = job.begin_generation(workers)
    size = len(processes)
    reports = sorted((process.told() for process in processes), key=lambda each: each["ranks"])
    assert [report["ranks"][:2] for report in reports] == [[rank, size] for rank in range(size)]
    for report in reports:
        assert report["generation"] == membership.generation
        assert report["sums"] == [size * (size + 1) // 2] * 3
        assert membership.places[report["worker"]].rank == report["ranks"][0]
    return reports


@pytest.mark.parametrize("killed", [False, True], ids=["one leaves", "one is killed"])
def test_from_3_to_2_to_4_workers(killed: bool) -> None:
    staying, going = ("works", "sleeps") if killed else ("stays", "leaves")
    with (
        open_job() as job,
        started(job, ("a", 0, going), ("a", 1, staying), ("b", 0, staying)) as processes,
    ):
        first = generation(job, processes)
        going_one = next(p for p in processes if p.process.pid == first[0]["pid"])
        survivors = [process for process in processes if process is not going_one]
        if killed:
            going_one.process.kill()
            for process in survivors:
                assert "rank 0" in process.told()["error"]
        event = job.next_event(PATIENCE_S)
        assert event is not None
        assert event.kind is (EventKind.GONE if killed else EventKind.LEFT)
        assert event.worker.identity == first[0]["worker"]
        second = generation(job, survivors)
        assert [report["pid"] for report in second] == [report["pid"] for report in first[1:]]
        with started(job, ("a", 0, "stays"), ("c", 0, "stays")) as newcomers:
            third = generation(job, [*survivors, *newcomers])
            for process in (*survivors, *newcomers):
                assert process.process.wait(PATIENCE_S) == 0
    # Rank 0 is the one of a that has stayed, whose slot is the second one there by now.
    assert [report["ranks"] for report in third] == [
        [0, 4, 1, 2], [1, 4, 0, 2], [2, 4, 0, 1], [3, 4, 0, 1]
    ]  # fmt: skip
    # The first engine of the newcomers is the third one of the survivors, in the same process.
    assert [report["kept"] for report in third] == [[0, 1, 2], [2], [0, 1, 2], [2]]
    assert [third[rank]["pid"] for rank in (0, 2)] == [report["pid"] for report in second]
    assert len({report["worker"] for report in first + second + third}) == 5
