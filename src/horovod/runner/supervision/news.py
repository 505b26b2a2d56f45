"""Events that come from other threads to the launcher's loop, which sleeps in a selector."""

from __future__ import annotations

import os
import queue
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horovod.runner.supervision.events import Event


class News:
    """A queue whose descriptor becomes readable when something is in it.

    :meth:`put` is for any thread, the rest for the one of the loop.
    """

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)

    def fileno(self) -> int:
        """For a selector."""
        return self._read_end

    def put(self, event: Event) -> None:
        """Adds an event, and wakes the loop; after :meth:`close`, nothing happens."""
        self._events.put(event)
        with suppress(OSError):  # full, so that the loop wakes anyway, or closed
            os.write(self._write_end, b"x")

    def take(self) -> Iterator[Event]:
        """All events that came, in their order."""
        with suppress(BlockingIOError):
            os.read(self._read_end, 4096)
        while not self._events.empty():
            yield self._events.get()

    def close(self) -> None:
        """Ends it, after all threads that put something into it have ended."""
        os.close(self._read_end)
        os.close(self._write_end)
