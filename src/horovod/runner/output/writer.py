"""A thread that writes, so that nobody else has to wait for a console or a disk."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.runner.output.outlets import Outlet

# Written at once: much for what takes it fast, so that there are few calls, and little for what
# takes it slowly, so that it shows that something is taken.
_LARGE_BYTES = 128 * 1024
_SMALL_BYTES = 4096
_SLOW_S = 0.05


class Writer:
    """A queue of bytes for some outlets, and the thread that writes them in their order.

    An outlet that fails takes nothing more; what was meant for it is dropped.

    Args:
        on_news: called by the thread, briefly, after an error, and as :meth:`tell_below` says.
    """

    def __init__(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        self._condition = threading.Condition()
        self._queue: deque[tuple[Outlet, bytes]] = deque()
        self._outlets: set[Outlet] = set()
        self._pending = 0
        self._written = 0
        self._tell_below = -1
        self._failed: dict[Outlet, OSError] = {}
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def pending(self) -> int:
        """Number of bytes that wait, or are being written."""
        with self._condition:
            return self._pending

    @property
    def written(self) -> int:
        """Number of bytes that were written or dropped since the beginning."""
        with self._condition:
            return self._written

    def put(self, outlet: Outlet, data: bytes) -> None:
        """Queues bytes. Never waits."""
        with self._condition:
            if self._closed or outlet in self._failed or not data:
                return
            self._queue.append((outlet, data))
            self._outlets.add(outlet)
            self._pending += len(data)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="horovod-output", daemon=True
                )
                self._thread.start()
            self._condition.notify_all()

    def tell_below(self, num_bytes: int) -> bool:
        """Whether at most that many bytes wait now; if not, there will be news when it is so."""
        with self._condition:
            if self._pending <= num_bytes:
                return True
            self._tell_below = num_bytes
            return False

    def wait_below(self, num_bytes: int) -> None:
        """Waits until at most that many bytes wait, or the writer is closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._closed or self._pending <= num_bytes)

    def error_of(self, outlet: Outlet) -> OSError | None:
        """Return the error of an outlet that takes nothing more; None if it does."""
        with self._condition:
            return self._failed.get(outlet)

    def close(self) -> int:
        """Takes nothing more and drops what is still queued; there will be no news. Idempotent.

        Returns:
            How many bytes were not written. The thread may still be in the middle of them.
        """
        with self._condition:
            if self._closed:
                return 0
            left, self._closed = self._pending, True
            self._pending = 0
            self._queue.clear()
            self._condition.notify_all()
        if self._thread is not None and left == 0:
            self._thread.join()
        return left

    @property
    def finished(self) -> bool:
        """Whether the thread has ended, so that its outlets may be closed."""
        return self._thread is None or not self._thread.is_alive()

    # -- the thread

    def _work(self) -> None:
        self._write_all()
        for outlet in self._outlets:  # perhaps nobody has waited for this
            outlet.close()

    def _write_all(self) -> None:
        large = True
        while (batch := self._next_batch()) is not None:
            outlet, data = batch
            begin = 0
            while begin < len(data):
                end = _end_of_piece(data, begin, _LARGE_BYTES if large else _SMALL_BYTES)
                began_s = time.monotonic()
                error = _write(outlet, data[begin:end])
                large = time.monotonic() - began_s < _SLOW_S
                if error is not None:
                    end = len(data)
                if not self._account(outlet, end - begin, error):
                    return
                begin = end

    def _next_batch(self) -> tuple[Outlet, bytes] | None:
        """Wait for and return what is queued for one outlet; None at the end."""
        with self._condition:
            while not self._queue and not self._closed:
                self._condition.wait()
            if self._closed:
                return None
            outlet, first = self._queue.popleft()
            parts = [first]
            while self._queue and self._queue[0][0] is outlet:
                parts.append(self._queue.popleft()[1])
        return outlet, first if len(parts) == 1 else b"".join(parts)

    def _account(self, outlet: Outlet, num_bytes: int, error: OSError | None) -> bool:
        """Takes note of what was written; returns whether to go on."""
        with self._condition:
            if self._closed:
                return False
            if error is not None:
                self._failed[outlet] = error
                num_bytes += sum(len(data) for each, data in self._queue if each is outlet)
                self._queue = deque(each for each in self._queue if each[0] is not outlet)
            self._pending -= num_bytes
            self._written += num_bytes
            self._condition.notify_all()
            if error is not None or self._pending <= self._tell_below:
                self._tell_below = -1
                self._on_news()
            return True


def _write(outlet: Outlet, data: bytes) -> OSError | None:
    try:
        outlet.write(data)
    except OSError as error:
        return error
    except Exception as error:  # a stream of the user's, which may be closed
        return OSError(str(error))
    return None


def _end_of_piece(data: bytes, begin: int, num_bytes: int) -> int:
    """Return the end of the next piece: behind a line, so that no other writer splits it."""
    if len(data) - begin <= num_bytes:
        return len(data)
    return data.rfind(b"\n", begin, begin + num_bytes) + 1 or begin + num_bytes
