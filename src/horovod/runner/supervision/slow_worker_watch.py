"""Reads what the ranks of a job tell of their waits, and says which one is slow."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from horovod.errors import StartError
from horovod.rendezvous.waits import WANTED_KEY, Waits, waits_key
from horovod.runner.supervision.slow_workers import WINDOW_S, SlowWorkers, describe, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horovod.rendezvous.server import StoreServer

_JOIN_S = 5.0


class SlowWorkerWatch:
    """Follows a job whose ranks stay, in a thread of its own.

    Args:
        hostnames: of each rank.
        say: takes one line.
        window_s: see :class:`SlowWorkers`; the ranks tell as often.
    """

    def __init__(
        self, hostnames: Sequence[str], say: Callable[[str], None], window_s: float = WINDOW_S
    ) -> None:
        self._hostnames = list(hostnames)
        self._say = say
        self._window_s = window_s
        self._workers = SlowWorkers(len(hostnames), window_s)
        self._ended = threading.Event()

    @contextlib.contextmanager
    def using(self, store: StoreServer) -> Iterator[None]:
        """Watches as long as the job runs; then sums up, if a rank was slow."""
        began_s = time.monotonic()
        store.set(WANTED_KEY, b"")
        thread = threading.Thread(target=self._watch, args=(store,), name="horovod-slow-workers")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(_JOIN_S)
            line = summary(self._workers.ranks, self._hostnames, time.monotonic() - began_s)
            if line:
                self._say(line)

    def _watch(self, store: StoreServer) -> None:
        with contextlib.suppress(StartError):  # the store was closed
            while not self._ended.wait(self._window_s):
                for finding in self._workers.add(self._told(store)):
                    self._say(describe(finding, self._hostnames[finding.rank]))

    def _told(self, store: StoreServer) -> dict[int, Waits]:
        told: dict[int, Waits] = {}
        for rank in range(len(self._hostnames)):
            text = store.try_get(waits_key(0, rank))
            if text is None:
                break
            told[rank] = Waits.from_json(text)
        return told
