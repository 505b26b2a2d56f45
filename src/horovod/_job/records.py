"""Keys and values that a job and its workers exchange in the store. Pure.

Workers append to the list ``job/events/``; whoever coordinates the job reads it from the front. A
generation is ``job/generation/<number>``, the places of all its members by identity, and the key
``job/newest`` holds the highest number. All of it is awaited in the store; who waits for long looks
at the highest number again, as generations that were replaced long ago are deleted.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from horovod._base.fast_dataclass import dataclass
from horovod._job.membership import Worker
from horovod._job.place import Place
from horovod._rendezvous.bounds import names_in, number_in, one_line, seconds_in
from horovod.errors import StartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

EVENTS = "job/events/"
LOST = "job/lost/"
_MOST = 2**31 - 1
NEWEST_KEY = "job/newest"


class Store(Protocol):
    """The interface common to a server and a client of the store."""

    def set(self, key: str, value: bytes, /) -> None:
        """Stores a value."""

    def add(self, key: str, value: bytes, /) -> bytes | None:
        """Stores a value if the key is new; otherwise returns the value that is there."""

    def append(self, prefix: str, value: bytes, /) -> int:
        """Stores a value at the end of a list."""

    def try_get(self, key: str, /) -> bytes | None:
        """Returns the value, or None."""

    def wait_all(
        self, keys: Sequence[str], timeout_s: float, stop_key: str = ""
    ) -> dict[str, bytes]:
        """Waits for values."""

    def delete(self, key: str, /) -> None:
        """Deletes one key, if it exists."""

    def delete_prefix(self, prefix: str, /) -> object:
        """Deletes all keys that start with ``prefix``."""


class MalformedEventError(StartError):
    """A worker sent something that makes no sense."""


class EventKind(Enum):
    """The kinds of events of a worker."""

    READY = "ready"
    RUNNING = "running"
    RESET = "reset"
    LEAVING = "leaving"
    LEFT = "left"
    GONE = "gone"


@dataclass(frozen=True)
class Event:
    """A report of a worker, or of the store when the worker's connection has ended.

    Attributes:
        kind: READY: it can take part. RUNNING: it is connected to all others of a generation.
            RESET: it lost a peer, or could not connect, and awaits the next generation. LEAVING: it
            asks to be left out of the next one. LEFT: it has taken leave. GONE: its process has
            ended, or its host cannot be reached.
        worker: who.
        text: why.
        generation: of a RUNNING: which one; of a RESET: the one that failed.
        stood_s: of a RUNNING: seconds since it gave up the generation before; 0 in its first.
        replayed: of a RESET: how many samples all ranks had done since their last commit.
    """

    kind: EventKind
    worker: Worker
    text: str = ""
    generation: int = -1
    stood_s: float = 0.0
    replayed: int = 0

    def to_json(self) -> bytes:
        """Serialize for the store."""
        return json.dumps(asdict(self) | {"kind": self.kind.value}).encode()

    @staticmethod
    def from_json(text: bytes) -> Event:
        """Reads what :meth:`to_json` wrote.

        Raises:
            MalformedEventError: it is something else, or out of bounds.
        """
        try:
            record = _object(text)
            worker = Worker(**record["worker"])
            names_in((worker.identity, worker.host))
            number_in(worker.slot, 0, _MOST)
            generation = number_in(record.get("generation", -1), -1, _MOST)
            stood_s = seconds_in(record.get("stood_s", 0.0), _MOST)
            replayed = number_in(record.get("replayed", 0), 0, 2**62)
            said = one_line(str(record["text"]))
            return Event(EventKind(record["kind"]), worker, said, generation, stood_s, replayed)
        except (KeyError, TypeError, ValueError, UsageError, StartError):
            raise MalformedEventError(f"malformed event of a worker: {text[:200]!r}") from None


def generation_key(generation: int) -> str:
    """Return the key of the places of a generation."""
    return f"job/generation/{generation}"


def dismissed_key(identity: str) -> str:
    """Holds why a worker takes part no longer; ends its waits."""
    return f"job/dismissed/{identity}"


def lost_key(generation: int) -> str:
    """Return the key that holds why a generation cannot go on, for members that sleep."""
    return f"{LOST}{generation}"


def alive_key(identity: str) -> str:
    """Changes every few seconds as long as a worker of an elastic job can run at all."""
    return f"job/alive/{identity}"


def beat_s_of(timeout_s: float) -> float:
    """Return the seconds between signs of life, if silence of ``timeout_s`` is too long."""
    return min(5.0, timeout_s / 5)


def identity_key(identity: str) -> str:
    """Exists as soon as somebody has this identity."""
    return f"job/identity/{identity}"


def places_to_json(places: Mapping[str, Place]) -> bytes:
    """The places of a generation as they are in the store."""
    return json.dumps({identity: vars(place) for identity, place in places.items()}).encode()


def identities_in(text: bytes) -> frozenset[str]:
    """The members in what :func:`places_to_json` wrote.

    Raises:
        StartError: it is something else.
    """
    return frozenset(_object(text))


def place_of(identity: str, text: bytes) -> Place | None:
    """The place of a worker in what :func:`places_to_json` wrote; None if it has none.

    Raises:
        StartError: it is something else.
    """
    record = _object(text).get(identity)
    try:
        return None if record is None else Place(**record)
    except (TypeError, UsageError):
        raise StartError(f"malformed place of {identity}: {record!r}") from None


def claim_identity(store: Store, host: str) -> str:
    """Makes a new identity for a process of a host: its name and a number that none had before."""
    number = store.append(f"job/started/{host}/", b"")
    while store.add(identity_key(f"{host}-{number}"), b"") is not None:
        number = store.append(f"job/started/{host}/", b"")
    return f"{host}-{number}"


def _object(text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise StartError(f"the store holds something else than a record: {text[:200]!r}")
    return record
