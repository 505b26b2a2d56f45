"""One thread that paints, and a bounded line of requests before it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


class BusyError(Exception):
    """As many requests wait as may."""


class PaintingThread:
    """Runs functions one after the other in a thread; at most ``most_waiting`` of them wait."""

    def __init__(self, most_waiting: int) -> None:
        self._most = most_waiting + 1  # one runs
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="painting")
        self._lock = threading.Lock()
        self._accepted = 0

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of a call. Raise BusyError at once if too many wait already."""
        with self._lock:
            if self._accepted >= self._most:
                raise BusyError(
                    f"{self._accepted} pictures are asked for already: try again in a second."
                )
            self._accepted += 1
        future = self._pool.submit(function, *arguments)
        # Not when the caller stops waiting: the thread may be busy with the call even then.
        future.add_done_callback(self._count_down)
        return await asyncio.wrap_future(future)

    def _count_down(self, _: Future[Any]) -> None:
        with self._lock:
            self._accepted -= 1

    def close(self) -> None:
        """Drop the calls that wait, and return when the one that runs has ended."""
        self._pool.shutdown(cancel_futures=True)
