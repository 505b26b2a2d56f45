"""The roster: each rank publishes itself in the store and learns about all others.

Keys of one round of connecting are ``peers/<generation>.<count>/job`` (size and version, by the
rank that came first), ``…/rank/<rank>`` and ``…/failed`` (the first cause that made a rank give
up; all others stop waiting when it appears).
"""

from __future__ import annotations

import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

from horovod._base.fast_dataclass import dataclass
from horovod._rendezvous.bounds import names_in, number_in
from horovod._rendezvous.incarnation import Incarnation, latest_key
from horovod._rendezvous.sockets import remaining_s
from horovod._rendezvous.versions import refuse_other_version
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod._rendezvous.store import StoreClient

# A launcher may store the host name of each rank here (a JSON list), for better messages.
HOSTS_KEY = "job/hosts"

_MAX_NAMED_RANKS = 16


@dataclass(frozen=True)
class RankInfo:
    """The facts that a rank publishes about itself.

    Attributes:
        rank, size: as the rank believes them to be.
        host, pid: where it runs; for messages.
        host_key: equal for ranks that can share memory.
        version: of Horovod.
        tcp_address, tcp_port: where it listens for ranks of other hosts.
        unix_name: of its abstract unix socket, for ranks of the same host.
        num_streams: data connections that it opens to a rank of another host.
        free_port: kept free in its process for the store of PyTorch; 0 for none.
    """

    rank: int
    size: int
    host: str
    pid: int
    host_key: str
    version: str
    tcp_address: str
    tcp_port: int
    unix_name: str
    num_streams: int
    free_port: int

    @property
    def name(self) -> str:
        """The rank's place, for messages: ``host:pid``."""
        return f"{self.host}:{self.pid}"

    def to_json(self) -> bytes:
        """Serialize for the store."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(text: bytes) -> RankInfo:
        """Reads what :meth:`to_json` wrote.

        Raises:
            StartError: fields are missing, unknown or of another type.
        """
        fields = _parse_object(text)
        types = RankInfo.__annotations__
        if fields.keys() != types.keys() or any(
            type(value).__name__ != types[name] for name, value in fields.items()
        ):
            raise StartError(f"a rank published something that makes no sense: {text[:200]!r}")
        info = RankInfo(**fields)
        try:
            names_in((info.host, info.host_key, info.version, info.tcp_address, info.unix_name))
            for number in (info.rank, info.size, info.pid, info.num_streams):
                number_in(number, 0, 2**31 - 1)
            for port in (info.tcp_port, info.free_port):
                number_in(port, 0, 65535)
        except ValueError as error:
            raise StartError(f"a rank published {error}: {text[:200]!r}") from None
        return info


class Roster:
    """One rank's view of one round of connecting.

    Args:
        store: where the ranks of the job meet.
        incarnation: of the engines that connect; the same on all ranks.
        info: about this rank.
        timeout_s: how long to wait for the other ranks, from now on.
    """

    def __init__(
        self, store: StoreClient, incarnation: Incarnation, info: RankInfo, timeout_s: float
    ) -> None:
        self._store = store
        self._incarnation = incarnation
        self._info = info
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._prefix = incarnation.prefix

    def announce(self) -> None:
        """Publishes this rank.

        Raises:
            StartError: the ranks disagree on the size or the version, or this rank is there twice.
        """
        previous = self._incarnation.previous
        if self._info.rank == 0 and previous is not None:
            self._store.delete_prefix(previous.prefix)
        # Not under the prefix: it tells where a missing rank is.
        self._store.set(latest_key(self._info.rank), str(self._incarnation).encode())
        text = self._info.to_json()
        first = self._store.add(self._prefix + "job", text)
        if first is not None:
            self._check_job(self._read(first))
        twin = self._store.add(rank_key(self._incarnation, self._info.rank), text)
        if twin is not None:
            raise StartError(
                f"rank {self._info.rank} is there twice: {self._read(twin).name} and "
                f"{self._info.name}; each process needs a rank of its own"
            )

    def wait_all(self) -> list[RankInfo]:
        """Waits until every rank has announced itself; returns them in the order of ranks.

        Raises:
            StartError: some did not appear in time, or another rank gave up.
        """
        keys = [rank_key(self._incarnation, rank) for rank in range(self._info.size)]
        failed = self._incarnation.failed_key
        found = self._store.wait_all(keys, remaining_s(self._deadline), failed)
        if failed in found:
            raise StartError(found[failed].decode("utf-8", "replace"))
        missing = [rank for rank, key in enumerate(keys) if key not in found]
        if missing:
            self._raise_missing(missing)
        return [self._read(found[key]) for key in keys]

    def report_failure(self, cause: str) -> None:
        """Tells the other ranks that this one gives up; only the first cause of all is kept."""
        with suppress(StartError):
            text = f"rank {self._info.rank} ({self._info.name}) could not start: {cause}"
            self._store.add(self._incarnation.failed_key, text.encode())

    def first_failure(self) -> str:
        """Return why another rank gave up, or an empty text."""
        cause = None
        with suppress(StartError):
            cause = self._store.try_get(self._incarnation.failed_key)
        return (cause or b"").decode("utf-8", "replace")

    def _read(self, text: bytes) -> RankInfo:
        """Read what a rank published; another version may have published other facts."""
        refuse_other_version(text, "another rank", self._info.version)
        return RankInfo.from_json(text)

    def _check_job(self, first: RankInfo) -> None:
        if first.size != self._info.size:
            raise StartError(
                f"the ranks disagree on the size of the job: rank {first.rank} ({first.name}) has "
                f"{first.size}, rank {self._info.rank} ({self._info.name}) has {self._info.size}"
            )
        if first.num_streams != self._info.num_streams:
            raise StartError(
                "the ranks disagree on HOROVOD_NUM_STREAMS, the number of connections between two "
                f"hosts: rank {first.rank} ({first.name}) has {first.num_streams}, rank "
                f"{self._info.rank} ({self._info.name}) has {self._info.num_streams}; set the "
                "same number on all hosts"
            )

    def _raise_missing(self, missing: Sequence[int]) -> NoReturn:
        hosts = self._hosts()
        places = []
        for rank in missing[:_MAX_NAMED_RANKS]:
            host = f" ({hosts[rank]})" if rank < len(hosts) else ""
            places.append(f"{rank}{host}{self._elsewhere(rank)}")
        raise StartError(
            f"{_count(missing)} of {self._info.size} never appeared within {self._timeout_s:g} s: "
            f"{_shorten(places, missing)}; look for their errors, or give them more time with "
            "--start-timeout (HOROVOD_START_TIMEOUT)"
        )

    def _hosts(self) -> list[str]:
        text = self._store.try_get(HOSTS_KEY)
        with suppress(ValueError, RecursionError):
            hosts = json.loads(text or b"[]")
            if isinstance(hosts, list):
                return [str(host) for host in hosts]
        return []

    def _elsewhere(self, rank: int) -> str:
        latest = None
        with suppress(ValueError):
            latest = Incarnation.parse(self._store.try_get(latest_key(rank)) or b"")
        mine = self._incarnation
        if latest is None or latest == mine:
            return ""
        if latest.generation != mine.generation:
            return (
                f" [it was last seen in generation {latest.generation} of the job, this rank is "
                f"in {mine.generation}]"
            )
        return (
            f" [it has called init() {_times(latest.count)}, this rank {_times(mine.count)}: "
            "init() and shutdown() must be called equally often on all ranks]"
        )


def rank_key(incarnation: Incarnation, rank: int) -> str:
    """Return the key under which a rank describes itself when it begins to connect."""
    return f"{incarnation.prefix}rank/{rank}"


def describe_ranks(infos: Iterable[RankInfo]) -> str:
    """Names ranks with their places, for a message."""
    ranks = [f"{info.rank} ({info.name})" for info in infos]
    return _shorten(ranks[:_MAX_NAMED_RANKS], ranks)


def host_key(hostname: str) -> str:
    """A text that is equal for two processes that can share memory and abstract unix sockets.

    Two containers with the same host name have different network namespaces; two machines with
    the same name were booted differently.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot_id = file.read().strip()
        return f"{hostname}/{boot_id}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        # Without proof the rank counts as alone on its host: slower, but correct.
        return f"{hostname}/{secrets.token_hex(16)}"


def _parse_object(text: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        fields = json.loads(text)
        if isinstance(fields, dict):
            return fields
    return {}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _count(ranks: Sequence[int]) -> str:
    return "1 rank" if len(ranks) == 1 else f"{len(ranks)} ranks"


def _shorten(names: Sequence[str], everything: Sequence[object]) -> str:
    rest = len(everything) - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest else "")
