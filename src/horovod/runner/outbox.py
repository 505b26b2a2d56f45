"""The agent's frames on their way to the launcher."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from horovod.runner.frames import Kind, encode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_HIGH_WATER_BYTES = 1024 * 1024
_STDOUT = 1


class Outbox:
    """Frames on their way to the launcher.

    Args:
        loop: calls back when the pipe takes more.
        on_full: called with True when so much waits that the ranks must pause, with False when
            there is room again.
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
        self._full = False
        self._broken = False
        os.set_blocking(_STDOUT, False)

    def when_empty(self, callback: Callable[[], None]) -> None:
        """Calls back once everything has been handed over, or nobody is left to take it."""
        self._on_empty = callback
        self._flush()

    def send(self, kind: Kind, rank: int = -1, payload: bytes = b"") -> None:
        """Queues a frame and writes what the pipe takes at once."""
        if not self._broken:
            self._pending += encode(kind, rank, payload)
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
        full = len(self._pending) > _HIGH_WATER_BYTES or (self._full and bool(self._pending))
        if full != self._full:
            self._full = full
            self._on_full(full)
        if self._broken and not was_broken:
            self._on_broken()
