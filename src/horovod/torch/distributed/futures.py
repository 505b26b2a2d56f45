"""The threads that complete the futures of one group."""

from __future__ import annotations

import queue
import threading
import weakref
from typing import TYPE_CHECKING

from horovod._rank.completions import CompletionThread

if TYPE_CHECKING:
    from torch.futures import Future

    from horovod.torch.distributed.work import EngineWork


class FutureThreads:
    """Complete the futures of a group's operations, each in a thread that waits for it.

    All ranks call the operations of a group in the same order, so none waits behind a later one.
    A thread drives the engine without Python's lock while it waits. Callbacks of the futures run
    in it and may wait for other futures of the group, as PowerSGD's do: whenever all threads run
    callbacks and an operation is pending, there is one more thread. Usually there is one, and
    none as long as nobody asks for a future.

    Args:
        name: of the threads, for debuggers and stack dumps.
    """

    def __init__(self, name: str) -> None:
        self._pending = _Pending(name)
        # The threads hold the queue alone, so that a group nobody refers to can go.
        weakref.finalize(self, self._pending.queue.put, None)

    def add(self, work: EngineWork, trigger: Future[None]) -> None:
        """Complete a future when its operation has ended, whether it failed or not."""
        self._pending.queue.put((work, trigger))
        self._pending.start_if_all_call_back()

    def close(self) -> None:
        """End the threads after the futures that were added."""
        self._pending.queue.put(None)


class MessageFutures:
    """Complete the futures of messages between two ranks, which end in any order.

    Args:
        name: of the threads.
    """

    def __init__(self, name: str) -> None:
        self._completions = CompletionThread(name)
        self._threads = FutureThreads(name)
        weakref.finalize(self, self._completions.close, 0.0)

    def add(self, work: EngineWork, trigger: Future[None]) -> None:
        """Complete a future when its operation has ended, whether it failed or not."""
        # Callbacks of futures run in other threads, as they may wait for other messages.
        self._completions.call_when_done(work.handle, lambda: self._threads.add(work, trigger))

    def close(self) -> None:
        """End the threads after the futures whose operations have ended."""
        self._completions.close()
        self._threads.close()


class _Pending:
    """Futures to complete, and the threads that do; all fields below the lock are guarded by it."""

    def __init__(self, name: str) -> None:
        self.queue: queue.SimpleQueue[tuple[EngineWork, Future[None]] | None] = queue.SimpleQueue()
        self._name = name
        self._lock = threading.Lock()
        self._num_threads = 0
        self._num_calling_back = 0

    def start_if_all_call_back(self) -> None:
        """Start another thread if those that exist may be waiting for what is in the queue."""
        with self._lock:
            if self._num_threads > self._num_calling_back:
                return
            self._num_threads += 1
        threading.Thread(target=self._complete, name=self._name, daemon=True).start()

    def _complete(self) -> None:
        while (entry := self.queue.get()) is not None:
            work, trigger = entry
            work.end()
            with self._lock:
                self._num_calling_back += 1
            if not self.queue.empty():
                self.start_if_all_call_back()
            trigger.set_result(None)
            del entry, work, trigger  # or the last tensors would stay until the next operation
            with self._lock:
                self._num_calling_back -= 1
        with self._lock:
            self._num_threads -= 1
            is_last = self._num_threads == 0
        if not is_last:
            self.queue.put(None)
