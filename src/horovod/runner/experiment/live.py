"""Publishes the reports of ranks for monitors of an experiment."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager, suppress
from dataclasses import astuple
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.runner.experiment import record
from horovod.runner.supervision.slow_worker_watch import Watch, read_waits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from horovod._rendezvous.server import StoreServer

# Whoever looks says so again before this is over.
INTEREST_S = 15.0
_INTERVAL_S = 1.0


class LiveReport(Watch):
    """Writes what ranks tell of their waits into a file, as long as somebody wants to see it.

    Args:
        wanted: a file that is touched by whoever looks.
        path: the file.
        size: how many ranks there are.
    """

    def __init__(self, wanted: Path, path: Path, size: int) -> None:
        super().__init__(lambda _: None, _INTERVAL_S)
        self._wanted = wanted
        self._path = path
        self._size = size

    @contextmanager
    def using(self, store: StoreServer) -> Iterator[None]:
        """Goes on as long as a line is executed."""
        try:
            with super().using(store):
                yield
        finally:
            with suppress(OSError):  # ranks of the next line count anew
                self._path.unlink(missing_ok=True)

    def _look(self, store: StoreServer) -> None:
        if self._is_wanted():
            told = read_waits(store, 0, self._size)
            text = json.dumps({rank: astuple(waits) for rank, waits in told.items()})
            with suppress(UsageError):  # the disk is full
                record.write(self._path, text)

    def _is_wanted(self) -> bool:
        try:
            return time.time() - self._wanted.stat().st_mtime < INTEREST_S
        except OSError:
            return False
