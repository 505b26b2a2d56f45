"""Threads that bring news to the loop of an elastic job: which hosts there are, what workers say.

The loop itself waits for neither a script nor the store.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from horovod._job.records import MalformedEventError, alive_key, beat_s_of
from horovod._rendezvous.bounds import name_in, one_line
from horovod._rendezvous.messages import MAX_TIMEOUT_S
from horovod.errors import StartError, UsageError
from horovod.runner.supervision.events import (
    DiscoveryFailed,
    HostsDiscovered,
    WorkerSaid,
    WorkerSilent,
)
from horovod.runner.supervision.silence import Silence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horovod._job.job import Job
    from horovod.runner.supervision.events import Event
    from horovod.runner.supervision.news import News

_logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
# That a host can have; more is a mistake of whoever tells it, and something is done for each.
MOST_SLOTS = 65_536
# A thread that hangs in code of the user must not keep a job from its end.
_PATIENCE_S = 5.0


class Discovery(Protocol):
    """Tells which hosts there are; see :class:`horovod.runner.placing.discovery.HostDiscovery`."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The hosts that may be used now, and how many workers each may hold."""
        ...


def _check_name(name: str) -> None:
    try:
        name_in(name)
    except ValueError as error:
        raise UsageError(f"{name[:80]!r} is not a valid host name: {error}") from None


def ask(discovery: Discovery, has_answered: bool) -> Event:
    """Asks once which hosts there are.

    Args:
        discovery: may raise anything, and may change and return the same dictionary.
        has_answered: whether it ever gave an answer before.
    """
    try:
        found = discovery.find_available_hosts_and_slots()
        hosts = tuple((str(name), int(slots)) for name, slots in found.items())
        for name, slots in hosts:
            _check_name(name)
            if slots > MOST_SLOTS:
                raise UsageError(f"{name} has {slots:.3g} slots, more than {MOST_SLOTS}")
    except Exception as error:
        text = str(error) or type(error).__name__
        return DiscoveryFailed(time.monotonic(), one_line(text), first=not has_answered)
    return HostsDiscovered(time.monotonic(), hosts)


@contextmanager
def _beside(
    work: Callable[[], None], name: str, end: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Works on a thread inside of the block; ``end`` lets the work end."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end()
        thread.join(_PATIENCE_S)


@contextmanager
def asking(discovery: Discovery, news: News, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Asks again and again which hosts there are, on a thread, inside of the block.

    Args:
        discovery: what to ask; its ``close()``, if it has one, ends a question under way.
        news: gets each answer.
        interval_s: between an answer and the next question.
    """
    over = threading.Event()

    def work() -> None:
        has_answered = False
        while not over.is_set():
            event = ask(discovery, has_answered)
            if over.is_set():
                return
            has_answered = has_answered or isinstance(event, HostsDiscovered)
            news.put(event)
            over.wait(interval_s)

    def end() -> None:
        over.set()
        close = getattr(discovery, "close", None)
        if callable(close):
            close()

    with _beside(work, "horovod-discovery", end):
        yield


@contextmanager
def listening(job: Job, news: News) -> Iterator[None]:
    """Passes on what workers tell in the store, from a thread, until the store is closed.

    Args:
        job: read by nobody else. Its store must be closed by the end of the block.
        news: gets what each worker tells.
    """

    def work() -> None:
        while True:
            try:
                record = job.next_event(MAX_TIMEOUT_S)
            except MalformedEventError as error:
                _logger.warning("%s", error)
                continue
            except StartError:
                return  # the store was closed
            if record is not None:
                news.put(WorkerSaid(time.monotonic(), record))

    with _beside(work, "horovod-job-events"):
        yield


@contextmanager
def hearing(job: Job, news: News, timeout_s: float) -> Iterator[None]:
    """Tells which workers of the job are silent, from a thread, inside of the block.

    Args:
        job: whose ``membership`` says who the members are; earlier ones may still train.
        news: gets a :class:`WorkerSilent` for each that is.
        timeout_s: how long a worker may be silent.
    """
    over = threading.Event()
    silence = Silence(timeout_s)

    def work() -> None:
        known: set[str] = set()
        last: dict[str, bytes | None] = {}
        while not over.wait(beat_s_of(timeout_s)):
            membership = job.membership
            members = {each.worker.identity for each in (membership.members if membership else ())}
            known |= members
            keys = {identity: alive_key(identity) for identity in known}
            try:
                found = job.store.wait_all(list(keys.values()), 0.0) if keys else {}
            except StartError:
                return  # the store was closed
            now_s = time.monotonic()
            values = {identity: found.get(key) for identity, key in keys.items()}
            silent = silence.look(now_s, values)
            for identity, silent_s in silent.items():
                news.put(WorkerSilent(now_s, identity, silent_s))
            # When a process has ended, its sign is deleted; one that was told is told once.
            ended = {each for each in known if values[each] is None and last.get(each)}
            known, last = known - ended - silent.keys(), values

    with _beside(work, "horovod-silence", over.set):
        yield
