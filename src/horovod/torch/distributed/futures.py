"""The thread that completes the futures of one group."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.futures import Future

    from horovod.torch.distributed.work import EngineWork


class FutureThread:
    """Completes the futures of a group's operations in their order, from a thread of its own.

    All ranks call the operations of a group in the same order, so none waits behind a later one.
    The thread drives the engine without Python's lock while it waits, and sleeps while no future
    was asked for. Callbacks of the futures run in it.

    Args:
        name: of the thread, for debuggers and stack dumps.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[EngineWork, Future[None]] | None] | None = None

    def add(self, work: EngineWork, trigger: Future[None]) -> None:
        """Complete a future when its operation has ended, whether it failed or not."""
        with self._lock:
            if self._queue is None:
                self._queue = queue.SimpleQueue()
                # The thread holds the queue alone, so that a group nobody refers to can go.
                weakref.finalize(self, self._queue.put, None)
                arguments = (self._queue,)
                threading.Thread(
                    target=_complete, args=arguments, name=self._name, daemon=True
                ).start()
        self._queue.put((work, trigger))

    def close(self) -> None:
        """End the thread after the futures that were added."""
        with self._lock:
            if self._queue is not None:
                self._queue.put(None)
                self._queue = None


def _complete(pending: queue.SimpleQueue[tuple[EngineWork, Future[None]] | None]) -> None:
    while (entry := pending.get()) is not None:
        work, trigger = entry
        work.end()
        trigger.set_result(None)
        del entry, work, trigger  # or the last tensors would stay until the next operation
