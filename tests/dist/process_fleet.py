"""Workers of an elastic job that are real processes, driven by a job without any launcher."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from led_job import await_workers, begin_generation

from horovod._job import Assignment, Worker
from horovod._job.job import Job, open_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.context import ForkServerContext

    from horovod._job.membership import Membership
    from horovod._job.records import EventKind

# A framework may take a good part of it to be imported, on a busy machine.
PATIENCE_S = 240.0


class Process:
    """A worker, and what it tells.

    Args:
        job: of the worker.
        slot: on the only host.
        context: makes processes.
        main: the whole process: takes its environment, its plan and a pipe.
        plan: what it does.
    """

    def __init__(
        self, job: Job, slot: int, context: ForkServerContext, main: Callable[..., None], plan: Any
    ) -> None:
        self.identity = job.new_identity("a")
        self.worker = Worker(self.identity, "a", slot)
        assignment = Assignment(
            job.where, None, self.identity, "a", slot=slot, elastic=True, min_size=2, max_size=4
        )
        self._reports, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=main, args=(assignment.variables(), plan, sender))
        self.process.start()
        sender.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self.process.pid is not None
        return self.process.pid

    def told(self, what: str) -> dict[str, Any]:
        """Return the next report with a field; what comes before it is of no interest."""
        deadline = time.monotonic() + PATIENCE_S
        while self._reports.poll(max(0.0, deadline - time.monotonic())):
            report: dict[str, Any] = self._reports.recv()
            if what in report:
                return report
        raise AssertionError(f"{self.identity} did not tell {what!r}")

    def ends(self, code: int) -> None:
        """Wait for its end."""
        self.process.join(PATIENCE_S)
        assert self.process.exitcode == code

    def close(self) -> None:
        """End the process if it has not ended."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self._reports.close()


class Fleet:
    """The workers of a job, and its coordinator.

    Args:
        job: of the workers.
        context, main: see :class:`Process`.
    """

    def __init__(self, job: Job, context: ForkServerContext, main: Callable[..., None]) -> None:
        self.job = job
        self.processes: list[Process] = []
        self._context = context
        self._main = main

    def start(self, *plans: Any) -> list[Process]:
        """Start workers, each with its plan, in the next slots."""
        first = len(self.processes)
        new = [
            Process(self.job, slot, self._context, self._main, plan)
            for slot, plan in enumerate(plans, first)
        ]
        self.processes += new
        return new

    def begin(self, workers: Sequence[Process]) -> Membership:
        """Await that workers are ready, and begin a generation with them."""
        wanted = {process.identity for process in workers}
        await_workers(self.job, lambda job: wanted <= set(job.available), PATIENCE_S)
        return begin_generation(self.job, [process.worker for process in workers])

    def await_event(self, kind: EventKind, process: Process) -> None:
        """Await what a worker tells."""
        while (event := self.job.next_event(PATIENCE_S)) is not None:
            if (event.kind, event.worker.identity) == (kind, process.identity):
                return
        raise AssertionError(f"{process.identity} was never {kind}")


def begun(workers: Sequence[Process], fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return what workers tell at the beginning of their next generation, by rank.

    Args:
        workers: all of it.
        fields: what must be the same on all ranks, beside the generation.
    """
    reports = sorted((process.told("begins") for process in workers), key=lambda r: r["rank"])
    assert [report["rank"] for report in reports] == list(range(len(workers)))
    for report in reports:
        assert report["size"] == len(workers)
        for field in ("generation", "begins", *fields):
            assert report[field] == reports[0][field], (field, reports)
    return reports


@contextmanager
def opened_fleet(context: ForkServerContext, main: Callable[..., None]) -> Iterator[Fleet]:
    """Open a job without workers; end all that is left of them."""
    with open_job() as job:
        fleet = Fleet(job, context, main)
        try:
            yield fleet
        finally:
            for process in fleet.processes:
                process.close()
