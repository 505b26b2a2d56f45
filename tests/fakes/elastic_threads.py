"""Workers of an elastic job on threads, each with a context and an engine of its own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from led_job import await_workers, begin_generation

from horovod._job import Assignment
from horovod._job.job import Job, open_job
from horovod._rank import context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

PATIENCE_S = 90.0


class Died(Exception):
    """What a worker raises to be gone."""


class ElasticThreads:
    """A job of such workers."""

    def __init__(self, job: Job, threads: ThreadPoolExecutor) -> None:
        self._job = job
        self._threads = threads
        self.identities: list[str] = []
        self._waiting = threading.Semaphore(0)

    def start(self, work: Callable[[], Any], number: int = 1) -> list[Future[Any]]:
        """Workers in the next slots, which initialize Horovod and work."""
        return [self._start(work) for _ in range(number)]

    def begin(self, slots: Sequence[int]) -> None:
        """Begins a generation with the workers of these slots when they are ready."""
        wanted = [self.identities[slot] for slot in slots]
        await_workers(self._job, lambda job: set(wanted) <= set(job.available), PATIENCE_S)
        begin_generation(self._job, [self._job.available[each] for each in wanted])

    def await_waiting(self, number: int) -> None:
        """Waits until so many workers wait in :meth:`await_generation`."""
        for _ in range(number):
            assert self._waiting.acquire(timeout=PATIENCE_S)

    def await_generation(self, generation: int) -> None:
        """Waits until the calling worker has heard of it."""
        worker = context.elastic_worker()
        assert worker is not None
        self._waiting.release()
        heard = threading.Event()
        for _ in range(int(PATIENCE_S / 0.005)):
            if worker.newest >= generation:
                return
            heard.wait(0.005)
        raise AssertionError(f"generation {generation} was not published")

    def _start(self, work: Callable[[], Any]) -> Future[Any]:
        job, slot = self._job, len(self.identities)
        identity = job.new_identity("a")
        told = Assignment(
            job.where, None, identity, "a", slot=slot, elastic=True, min_size=1, max_size=9
        )

        def live() -> Any:
            own = context.Context()
            with own.use():
                context.init(job=told)
                try:
                    return work()
                finally:
                    own.shutdown()
                    own.part()

        self.identities.append(identity)
        return self._threads.submit(live)


@contextmanager
def elastic_threads() -> Iterator[ElasticThreads]:
    """A job without workers yet."""
    with open_job() as job, ThreadPoolExecutor(8) as threads:
        yield ElasticThreads(job, threads)
