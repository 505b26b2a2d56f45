"""Reads what the ranks of a job tell of their waits, and says which one is slow."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from horovod._rendezvous.waits import WANTED_KEY, Waits, waits_key, waits_prefix
from horovod.errors import StartError
from horovod.runner.supervision.events import WorkerSlow
from horovod.runner.supervision.slow_workers import (
    WINDOW_S,
    SlowMembers,
    SlowWorkers,
    describe,
    summary,
    would_save,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horovod._job.membership import Membership
    from horovod._rendezvous.server import StoreServer
    from horovod.runner.supervision.slow_workers import SlowMember

_JOIN_S = 5.0


class Watch:
    """A thread that looks at what ranks tell as long as a job runs.

    Args:
        say: takes one line.
        window_s: looks that often, in seconds.
    """

    def __init__(self, say: Callable[[str], object], window_s: float) -> None:
        self._say = say
        self._window_s = window_s
        self._ended = threading.Event()

    @contextlib.contextmanager
    def using(self, store: StoreServer) -> Iterator[None]:
        """Watches as long as the job runs; then sums up, if a rank was slow."""
        began_s = time.monotonic()
        store.set(WANTED_KEY, b"")
        name = f"horovod-{type(self).__name__}"
        thread = threading.Thread(target=self._watch, args=(store,), name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(_JOIN_S)
            line = self._summary(time.monotonic() - began_s)
            if line:
                self._say(line)

    def _watch(self, store: StoreServer) -> None:
        with contextlib.suppress(StartError):  # the store was closed
            while not self._ended.wait(self._window_s):
                self._look(store)

    def _look(self, store: StoreServer) -> None:
        raise NotImplementedError

    def _summary(self, elapsed_s: float) -> str:
        """Return the line to print at the end of the job; empty for none."""
        return ""


class SlowWorkerWatch(Watch):
    """Follows a job whose ranks stay, in a thread of its own.

    Args:
        hostnames: of each rank.
        say: takes one line.
        window_s: see :class:`SlowWorkers`; the ranks tell as often.
    """

    def __init__(
        self, hostnames: Sequence[str], say: Callable[[str], object], window_s: float = WINDOW_S
    ) -> None:
        super().__init__(say, window_s)
        self._names = [f"rank {rank} on {host}" for rank, host in enumerate(hostnames)]
        self._workers = SlowWorkers(len(hostnames), window_s)

    def _look(self, store: StoreServer) -> None:
        for finding in self._workers.add(read_waits(store, 0, len(self._names))):
            self._say(describe(finding, self._names[finding.rank]))

    def _summary(self, elapsed_s: float) -> str:
        return summary(dict(zip(self._names, self._workers.ranks, strict=True)), elapsed_s)


class SlowMemberWatch(Watch):
    """Follows an elastic job through its generations, in a thread of its own.

    Args:
        say: takes one line.
        tell: hears again and again who is slow, as long as somebody is; on that thread.
        window_s: see :class:`SlowWorkers`; the ranks tell as often.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        tell: Callable[[SlowMember], None] = lambda _: None,
        window_s: float = WINDOW_S,
    ) -> None:
        super().__init__(say, window_s)
        self._tell = tell
        self._lock = threading.Lock()
        self._generation, self._size, self._oldest = 0, 0, 0
        self._members = SlowMembers(window_s)

    def follow(self, membership: Membership) -> None:
        """A generation was published; callable from any thread."""
        with self._lock:
            self._generation, self._size = membership.generation, len(membership.members)
            self._members.follow([member.worker.identity for member in membership.members])

    def _look(self, store: StoreServer) -> None:
        generation, size = self._generation, self._size
        told = read_waits(store, generation, size)
        with self._lock:
            if generation != self._generation:
                return
            lines, slow = self._members.add(told), self._members.slow()
        for old in range(self._oldest, generation):
            store.delete_prefix(waits_prefix(old))
        self._oldest = generation
        for line in lines:
            self._say(line)
        for each in slow:
            self._tell(each)

    def _summary(self, elapsed_s: float) -> str:
        totals = self._members.totals()
        return summary({f"worker {name}": one for name, one in totals.items()}, elapsed_s)


def slow_event_of(member: SlowMember) -> WorkerSlow:
    """Return what the policy of an elastic job is told of a slow worker."""
    text = f"the others wait for it ({would_save(member.gain)})"
    return WorkerSlow(time.monotonic(), member.identity, member.gain, text)


def read_waits(store: StoreServer, generation: int, size: int) -> dict[int, Waits]:
    """Return the last reports of a generation's first ranks, up to one without a report."""
    told: dict[int, Waits] = {}
    for rank in range(size):
        text = store.try_get(waits_key(generation, rank))
        if text is None:
            break
        told[rank] = Waits.from_json(text)
    return told
