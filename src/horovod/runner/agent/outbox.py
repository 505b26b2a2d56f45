"""The agent's frames on their way to the launcher."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from horovod.runner.protocol.frames import WINDOW_BYTES, Kind, header

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_STDOUT = 1


class Outbox:
    """Frames on their way to the launcher.

    Args:
        loop: calls back when the pipe takes more.
        on_full: called with True when so much output is on its way that the ranks must pause, with
            False when the console has taken some of it.
        on_broken: called once when nobody reads any more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_full: Callable[[bool], None],
        on_broken: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_full = on_full
        self._on_broken = on_broken
        self._pending = bytearray()
        self._on_empty: Callable[[], None] | None = None
        self._not_taken = 0
        self._full = False
        self._broken = False
        os.set_blocking(_STDOUT, False)

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Calls back once everything has been handed over, or nobody is left to take it."""
        self._on_empty = callback
        self._flush()

    def relay(self, kind: Kind, worker: int, data: bytes) -> None:
        """Queues what a rank wrote."""
        self._count(len(data))
        self.send(kind, worker, data)

    def taken(self, num_bytes: int) -> None:
        """The console of the launcher has taken so much more of what was relayed."""
        self._count(-num_bytes)

    def _count(self, num_bytes: int) -> None:
        self._not_taken += num_bytes
        full = self._not_taken >= WINDOW_BYTES
        if full != self._full:
            self._full = full
            self._on_full(full)

    def send(self, kind: Kind, worker: int = -1, payload: bytes = b"") -> None:
        """Queues a frame and writes what the pipe takes at once."""
        if not self._broken:
            self._pending += header(kind, worker, len(payload))
            self._pending += payload
            self._flush()

    def _flush(self) -> None:
        was_broken = self._broken
        try:
            if self._pending:
                del self._pending[: os.write(_STDOUT, self._pending)]
        except BlockingIOError:
            pass
        except OSError:
            self._broken = True
            self._pending.clear()
        if self._pending:
            self._loop.add_writer(_STDOUT, self._flush)
        else:
            self._loop.remove_writer(_STDOUT)
            if self._on_empty is not None:
                self._on_empty()
        if self._broken and not was_broken:
            self._on_broken()
