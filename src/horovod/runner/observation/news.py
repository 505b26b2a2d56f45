"""What the launcher itself learns about a job: lines, warnings of ranks, ends. For any thread."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from horovod._rendezvous.bounds import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.runner.observation.records import JobEvent

MOST_EVENTS = 100
_TAIL_BYTES = 8192
_MOST_REPORT = 8000
# What Horovod's loggers write; a report has further lines, which do not begin like a log.
_WARNING = re.compile(rb"horovod (?:warning|error|fatal)\] ([^\r\n]*)")


class JobNews:
    """Events of a job, the last output of each rank, and which ranks have ended.

    Taking output costs a search and a copy of at most 8 KiB, also while nobody watches.

    Args:
        wake: called after each event.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._events: deque[tuple[float, str, str, int]] = deque(maxlen=MOST_EVENTS)
        self._tails: dict[int, bytearray] = {}
        self._states: dict[int, str] = {}
        self._last_warning = (b"", 0.0)

    def add(self, kind: str, text: str, rank: int = -1) -> None:
        """Note an event."""
        with self._lock:
            self._events.append((time.time(), kind, text[:_MOST_REPORT], rank))
        self._wake()

    def take_output(self, rank: int, data: bytes) -> None:
        """Note what a rank has written, on either stream."""
        tail = self._tails.setdefault(rank, bytearray())
        tail += data[-_TAIL_BYTES:]
        del tail[:-_TAIL_BYTES]
        if b"horovod " in data:
            for found in _WARNING.finditer(data):
                self._warn(rank, found[1])

    def _warn(self, rank: int, text: bytes) -> None:
        """Ranks often give the same warning at the same moment: one of them is enough."""
        now = time.monotonic()
        last, last_at = self._last_warning
        if text != last or now - last_at > 1.0:
            self._last_warning = text, now
            self.add("warning", one_line(text.decode(errors="replace")), rank)

    def rank_ended(self, rank: int, code: int, text: str) -> None:
        """Note the end of a rank."""
        self._states[rank] = "failed" if code else "ended"
        self.add("exit", text, rank)

    def begin_generation(self) -> None:
        """Forget who has ended: other processes have the ranks now."""
        self._states.clear()

    def state_of(self, rank: int) -> str:
        """Return "ended" or "failed" if a rank has ended; otherwise an empty string."""
        return self._states.get(rank, "")

    def events(self) -> tuple[JobEvent, ...]:
        """Return the latest events, the oldest first."""
        from horovod.runner.observation.records import JobEvent  # only for viewers

        with self._lock:
            return tuple(JobEvent(*event) for event in self._events)

    def output_of(self, rank: int) -> str:
        """Return the end of a rank's output."""
        return bytes(self._tails.get(rank, b"")).decode(errors="replace")

    def last_line_of(self, rank: int) -> str:
        """Return the last line of a rank that is not empty, shortened."""
        tail = bytes(self._tails.get(rank, b"")[-1024:])
        lines = [line for line in re.split(rb"[\r\n]+", tail) if line.strip()]
        return one_line(lines[-1].decode(errors="replace"), 200) if lines else ""
