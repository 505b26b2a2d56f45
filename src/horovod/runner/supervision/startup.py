"""Says which rank was slow in which phase, if a job takes long to start because of it.

A start is only reported if much of it could have been saved: a framework that takes its time to be
imported, on all ranks alike, is no news.

The phases of a rank: *spawn*, from the launcher's start to that of the process; *import*, until it
calls ``init``; *connect*, until it has a connection to every other rank. Ranks that come early wait
for the others while they connect, so the shortest time is what connecting itself takes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._rendezvous.arrival import called_key, connected_key
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from horovod._rendezvous.server import StoreServer

SLOW_START_S = 10.0
# What a start must have wasted to be reported, as a part of all of it.
_WASTED = 1 / 3
_MANY_RANKS = 8
# A program may compute for hours before it calls init; the end of the job wakes whoever waits.
_ONE_WAIT_S = 3600.0


@dataclass(frozen=True)
class Arrival:
    """The phases of one rank in seconds."""

    spawn_s: float
    import_s: float
    connect_s: float


def wasted_s(arrivals: Mapping[int, Arrival]) -> float:
    """Seconds for which all waited for those that came last, and for connections. Pure.

    Args:
        arrivals: by rank; not empty.
    """
    each = list(arrivals.values())
    phases = ([one.spawn_s for one in each], [one.import_s for one in each])
    behind_s = sum(max(seconds) - _median(seconds) for seconds in phases)
    return behind_s + min(one.connect_s for one in each)


def _median(seconds: Sequence[float]) -> float:
    """Return the median; the lower middle value if the number of values is even."""
    return sorted(seconds)[(len(seconds) - 1) // 2]


def describe_start(arrivals: Mapping[int, Arrival], hostnames: Sequence[str], took_s: float) -> str:
    """One line about a start that is over. Pure.

    Args:
        arrivals: by rank; not empty.
        hostnames: of each rank.
        took_s: from the launcher's start until all ranks were connected.
    """
    phases = [
        _phase("spawn", {rank: each.spawn_s for rank, each in arrivals.items()}, hostnames),
        _phase("import", {rank: each.import_s for rank, each in arrivals.items()}, hostnames),
        f"connect {min(arrival.connect_s for arrival in arrivals.values()):.1f} s",
    ]
    return f"starting took {took_s:.1f} s: {', '.join(phases)}"


def _phase(name: str, seconds: Mapping[int, float], hostnames: Sequence[str]) -> str:
    slowest = max(seconds, key=lambda rank: seconds[rank])
    text = f"{name} {seconds[slowest]:.1f} s"
    if len(seconds) == 1:
        return text
    middle_s = _median(list(seconds.values()))
    return f"{text} (rank {slowest} on {hostnames[slowest]} was last; median {middle_s:.1f} s)"


def describe_wait(
    called: set[int], connected: set[int], hostnames: Sequence[str], waited_s: float
) -> str:
    """One line about a start that goes on; empty while no rank has called ``init``. Pure.

    Args:
        called, connected: the ranks that have called ``init``, and that are connected.
        hostnames: of each rank.
        waited_s: since the launcher's start.
    """
    absent = [rank for rank in range(len(hostnames)) if rank not in called]
    late = absent or [rank for rank in sorted(called) if rank not in connected]
    if not called or not late:
        return ""
    names = ", ".join(f"{rank} on {hostnames[rank]}" for rank in late[:_MANY_RANKS])
    more = f" and {len(late) - _MANY_RANKS} more" if len(late) > _MANY_RANKS else ""
    many = len(late) > 1
    have, are = ("have", "are") if many else ("has", "is")
    what = f"{have} not called init() yet" if absent else f"{are} still connecting to the others"
    known = f"{len(called)} rank{'s have' if len(called) > 1 else ' has'} called init()"
    return f"after {waited_s:.0f} s {known}; rank{'s' if many else ''} {names}{more} {what}"


class StartWatch:
    """Follows the start of a job in a thread of its own, and reports if it takes long.

    Args:
        hostnames: of each rank.
        say: takes one line.
        began_s: when the launcher began, in ``time.monotonic()``.
        slow_s: what counts as long. What is still missing then is told after half as much again.
        verbose: report every start that is over.
    """

    def __init__(
        self,
        hostnames: Sequence[str],
        say: Callable[[str], None],
        began_s: float,
        slow_s: float = SLOW_START_S,
        *,
        verbose: bool = False,
    ) -> None:
        self._hostnames = hostnames
        self._say = say
        self._began_s = began_s
        self._slow_s = slow_s
        self._verbose = verbose
        self._ended = threading.Event()

    @contextlib.contextmanager
    def using(self, store: StoreServer) -> Iterator[None]:
        """Watches as long as the job runs."""
        thread = threading.Thread(target=self._watch, args=(store,), name="horovod-start")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            with contextlib.suppress(StartError):  # a store that is gone wakes it, too
                self._wake(store)
            thread.join()

    def _wake(self, store: StoreServer) -> None:
        """Ends the wait of the thread, whichever rank it waits for."""
        for rank in range(len(self._hostnames)):
            for key in (called_key(rank), connected_key(rank)):
                if store.try_get(key) is None:
                    store.set(key, b"nan")

    def _watch(self, store: StoreServer) -> None:
        ranks = range(len(self._hostnames))
        with contextlib.suppress(StartError):  # the store was closed
            if not self._all_connected(store, self._began_s + 1.5 * self._slow_s):
                called = {rank for rank in ranks if store.try_get(called_key(rank)) is not None}
                connected = {
                    rank for rank in ranks if store.try_get(connected_key(rank)) is not None
                }
                line = describe_wait(called, connected, self._hostnames, self._waited_s())
                if line and not self._ended.is_set():
                    self._say(line)
                self._all_connected(store)
            took_s = self._waited_s()
            if self._ended.is_set() or not (self._verbose or took_s >= self._slow_s):
                return
            arrivals = {rank: self._arrival(store, rank, took_s) for rank in ranks}
            if self._verbose or wasted_s(arrivals) >= _WASTED * took_s:
                self._say(describe_start(arrivals, self._hostnames, took_s))

    def _waited_s(self) -> float:
        return time.monotonic() - self._began_s

    def _all_connected(self, store: StoreServer, deadline: float = float("inf")) -> bool:
        for rank in range(len(self._hostnames)):
            key = connected_key(rank)
            while store.try_get(key) is None:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                with contextlib.suppress(StartError):  # a closed store fails in try_get, too
                    store.get(key, min(left_s, _ONE_WAIT_S))
        return True

    def _arrival(self, store: StoreServer, rank: int, took_s: float) -> Arrival:
        """All ranks end their start together, so how long each has lived tells when it began."""
        import_s = float(store.get(called_key(rank), 0.0))
        connect_s = float(store.get(connected_key(rank), 0.0))
        return Arrival(max(0.0, took_s - import_s - connect_s), import_s, connect_s)
