"""Ranks that are threads of this process; their engines exchange data in its memory.

Those of several hosts do so over sockets, in the ways of several hosts.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from horovod import _native
from horovod._rank.job_context import Context
from horovod._rank.reports.position import PositionWatch
from horovod._rank.start import engine_options
from horovod.errors import UsageError
from horovod.testing.outcomes import Failure, raise_first
from horovod.testing.places import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from horovod._rendezvous.incarnation import Incarnation
    from horovod._settings.config import Config

T = TypeVar("T")

STOP_S = 5.0
"""Seconds that ranks may go on after one has failed, to hear of it from their engine."""

# For a thread that its engine has told that the job is over.
_HEAR_S = 1.0


@dataclass(frozen=True)
class _RunningThread:
    """The engine of a rank that is a thread."""

    engine: _native.Engine
    config: Config
    watch: PositionWatch

    def close(self, reason: str) -> None:
        self.engine.close(reason)
        self.watch.join(_HEAR_S)

    def abandon(self) -> None:
        self.engine.abandon()


class ThreadWorld:
    """A job whose ranks are threads; each has a context, in which ``hvd.init()`` finds its place.

    Args:
        configs: the settings of each rank.
        options: of all engines; None for those that follow from the settings.

    Raises:
        UsageError: the settings ask for MPI, which knows only processes.
    """

    def __init__(
        self, configs: Sequence[Config], options: _native.EngineOptions | None = None
    ) -> None:
        if configs[0].cpu_operations == "mpi":
            raise UsageError("HOROVOD_CPU_OPERATIONS=mpi: ranks of MPI cannot be threads, unset it")
        self._lock = threading.Lock()
        self._configs = configs
        self._options = options
        self._engines: dict[Incarnation, list[_native.Engine]] = {}
        # Why a rank will start no more engines.
        self._gone: dict[int, str] = {}
        self.contexts = [Context(config, self._start) for config in configs]
        """The context of each rank."""

    def __enter__(self) -> ThreadWorld:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close("the test is over")

    def close(self, reason: str) -> None:
        """Ends the job; every thread that still waits goes on with an error. Idempotent.

        Args:
            reason: what they are told.
        """
        # Side by side, as processes do: NCCL waits a second for those that stay behind.
        closing = [
            threading.Thread(target=self.leave, args=(rank, reason), name=f"end of rank {rank}")
            for rank in range(len(self._configs))
        ]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def leave(self, rank: int, reason: str) -> None:
        """Lets a rank leave the job for good, as the end of its process does.

        Args:
            rank: of the job.
            reason: what the others are told.
        """
        with self._lock:
            self._gone.setdefault(rank, reason)
            engines = [engines[rank] for engines in self._engines.values()]
        self.contexts[rank].shutdown(reason)
        for engine in engines:
            engine.close(reason)

    def run(
        self, function: Callable[[int], T], timeout_s: float, *, ranks_stay: bool = False
    ) -> list[T]:
        """Calls ``function(rank)`` in a thread for each rank; returns the results in their order.

        Args:
            function: what a rank does.
            timeout_s: until all ranks must have ended.
            ranks_stay: whether the ranks go on to belong to the job, for another call of this.

        Raises:
            TimeoutError: some ranks did not end in time.
            BaseException: as of :func:`horovod.testing.run_ranks`.
        """
        results: list[Any] = [None] * len(self._configs)
        failures: list[Failure] = []
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()

        def body(rank: int) -> None:
            try:
                with self.contexts[rank].use():
                    results[rank] = function(rank)
            except BaseException as error:
                failures.append(Failure(rank, error, time.monotonic()))
                self.leave(rank, f"it raised {type(error).__name__}: {error}"[:500])
            else:
                if not ranks_stay:
                    self.leave(rank, "its function has returned")
            finally:
                ended.put(rank)

        threads = [
            threading.Thread(target=body, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(len(self._configs))
        ]
        try:
            for thread in threads:
                thread.start()
            stuck = _await(ended, threads, timeout_s, failures)
        except BaseException:  # Ctrl-C
            self.close("the test was interrupted")
            raise
        where = _tell(stuck)
        if stuck:
            self.close("the test ran out of time")
            for thread in stuck:
                thread.join(_HEAR_S)
        if failures:
            raise_first(failures, [thread.name for thread in stuck])
        if stuck:
            raise TimeoutError(f"ranks did not end within {timeout_s:g} s:\n{where}")
        return results

    def _start(self, config: Config, incarnation: Incarnation) -> _RunningThread:
        with self._lock:
            if incarnation not in self._engines:
                self._engines[incarnation] = self._make_engines()
            engine = self._engines[incarnation][config.rank]
        return _RunningThread(engine, config, PositionWatch(engine))

    def _hosts(self) -> list[int]:
        """Return the host of each rank, or nothing if all are on one."""
        names = [config.hostname for config in self._configs]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        return [numbers[name] for name in names] if len(numbers) > 1 else []

    def _make_engines(self) -> list[_native.Engine]:
        options = self._options or engine_options(
            # Files and cores are those of one rank.
            replace(self._configs[0], autotune_log="", thread_affinity=()),
            [name_of(config) for config in self._configs],
        )
        engines = _native.make_world(len(self._configs), options, self._hosts())
        for rank, reason in self._gone.items():
            engines[rank].close(reason)
        return engines


def _await(
    ended: queue.SimpleQueue[int],
    threads: Sequence[threading.Thread],
    timeout_s: float,
    failures: Sequence[Failure],
) -> list[threading.Thread]:
    """Waits for all ranks, but only for a while after one has failed; returns those still busy."""
    busy = dict(enumerate(threads))
    deadline_s = time.monotonic() + timeout_s
    while busy:
        try:
            del busy[ended.get(timeout=max(0.0, deadline_s - time.monotonic()))]
        except queue.Empty:
            break
        if failures:
            deadline_s = min(deadline_s, failures[0].at_s + STOP_S)
    return list(busy.values())


def _tell(threads: Sequence[threading.Thread]) -> str:
    """Describe the positions of threads."""
    frames = sys._current_frames()
    return "\n".join(
        f"{thread.name} is here:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threads
        if thread.ident in frames
    )
