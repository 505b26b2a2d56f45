"""The speed between the hosts, measured once while a job starts.

The first rank of each host stands for it. Hosts form a ring, in the order of their first ranks:
each sends to the next for some milliseconds, all at the same time, over a connection that serves
nothing else and is closed afterward. Rank 0 collects the results and publishes what all ranks
then use, so that all choose the same algorithms.

A measurement that fails leaves zeros, which mean "not known", and a warning. It never ends a job.
"""

from __future__ import annotations

import json
import logging
import socket
import statistics
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod._rendezvous.sockets import receive_exactly, receive_some, remaining_s
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod._rendezvous.store import StoreClient

_logger = logging.getLogger(__name__)

_NUM_PINGS = 8
_SEND_S = 0.02
# The other end may still be busy with connections to others.
_PATIENCE_S = 2.0
# From the first answer on, at most: 30 ms are usual.
_MEASURE_S = 1.0
# Little enough for slow links to take it soon, and enough to fill fast ones.
_SEND_BUFFER_BYTES = 256 * 1024
_CHUNK = bytes(64 * 1024)
# Connections start slowly: the first part of what arrives is not counted.
_SKIPPED = 0.25
_RATE = struct.Struct(">d")


@dataclass(frozen=True)
class LinkSpeeds:
    """The known speed of the network between the hosts; the same on all ranks.

    Attributes:
        latency_s: of a message between two hosts; 0 if it is not known.
        bytes_per_s: of the link of each host in one direction; 0 where it is not known.
    """

    latency_s: float = 0.0
    bytes_per_s: tuple[float, ...] = ()

    def to_json(self) -> bytes:
        """Serialize for the store."""
        return json.dumps([self.latency_s, *self.bytes_per_s]).encode()

    @staticmethod
    def from_json(text: bytes, num_hosts: int) -> LinkSpeeds:
        """Reads what :meth:`to_json` wrote.

        Raises:
            StartError: it is something else, or of another number of hosts.
        """
        with suppress(ValueError, TypeError, RecursionError):
            latency_s, *bytes_per_s = map(float, json.loads(text))
            if len(bytes_per_s) == num_hosts:
                return LinkSpeeds(latency_s, tuple(bytes_per_s))
        raise StartError(f"rank 0 published speeds that make no sense: {text[:200]!r}")


def number_hosts(host_keys: Sequence[str]) -> tuple[int, ...]:
    """The host of each rank by number, in the order of their first ranks.

    Example:
        >>> number_hosts(["b", "a", "b"])
        (0, 1, 0)
    """
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in host_keys)


def probes(hosts: Sequence[int]) -> list[tuple[int, int]]:
    """Which rank sends to which one: the first ranks of the hosts, around a ring.

    Example:
        >>> probes([0, 0, 1, 2, 1])
        [(0, 2), (2, 3), (3, 0)]
    """
    leaders = [hosts.index(host) for host in range(max(hosts) + 1)]
    if len(leaders) < 2:
        return []
    # Two hosts share one link.
    following = leaders[1:] + leaders[:1] if len(leaders) > 2 else leaders[1:]
    return list(zip(leaders, following, strict=False))


def combine(
    hosts: Sequence[int], measured: Mapping[tuple[int, int], tuple[float, float]]
) -> LinkSpeeds:
    """From latency and bytes per second of each probe to one speed for each host.

    A probe is as slow as the slower one of its two hosts, so the faster one of a host's two probes
    counts.

    Args:
        hosts: of each rank.
        measured: by probe; those that failed are left out.
    """
    bytes_per_s = [0.0] * (max(hosts) + 1)
    for probe, (_, rate) in measured.items():
        for rank in probe:
            bytes_per_s[hosts[rank]] = max(bytes_per_s[hosts[rank]], rate)
    latencies = [latency_s for latency_s, _ in measured.values()]
    return LinkSpeeds(statistics.median(latencies) if latencies else 0.0, tuple(bytes_per_s))


def measure(sock: socket.socket) -> tuple[float, float]:
    """Sends to a peer that runs :func:`answer`.

    Returns:
        The seconds of a message to the peer, and the bytes that it takes in per second.

    Raises:
        OSError: the connection broke, or the peer did not answer in time.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    _ping(sock, time.monotonic() + _PATIENCE_S)
    deadline = time.monotonic() + _MEASURE_S
    latency_s = min(_ping(sock, deadline) for _ in range(_NUM_PINGS)) / 2
    end = time.monotonic() + _SEND_S
    while time.monotonic() < end:
        sock.settimeout(remaining_s(deadline))
        sock.send(_CHUNK)
    sock.shutdown(socket.SHUT_WR)
    (rate,) = _RATE.unpack(receive_exactly(sock, _RATE.size, deadline))
    if not 0 < rate < 1e13:
        raise ConnectionError(f"the peer measured {rate} bytes per second")
    return latency_s, rate


def answer(sock: socket.socket) -> None:
    """Takes in what :func:`measure` sends, and tells how fast it came.

    Raises:
        OSError: the connection broke, or the peer did not send in time.
    """
    deadline = time.monotonic() + _PATIENCE_S
    for _ in range(1 + _NUM_PINGS):
        sock.sendall(receive_exactly(sock, 1, deadline))
        deadline = min(deadline, time.monotonic() + _MEASURE_S)
    view = memoryview(bytearray(4 * len(_CHUNK)))
    arrived = [(time.monotonic(), 0)]
    with suppress(ConnectionResetError):  # raised at the end of what the peer sends
        while True:
            num_bytes = receive_some(sock, view, deadline)
            arrived.append((time.monotonic(), arrived[-1][1] + num_bytes))
    sock.sendall(_RATE.pack(_rate_of(arrived)))


def agree_on_speeds(
    store: StoreClient,
    prefix: str,
    rank: int,
    hosts: Sequence[int],
    links: Mapping[int, socket.socket],
    deadline: float,
) -> LinkSpeeds:
    """Measures what this rank has to measure, and returns what all ranks use.

    Args:
        store: where the ranks of the job meet.
        prefix: of the keys of this round of connecting.
        rank: of this process.
        hosts: of each rank.
        links: connections for this purpose, by peer; they stay open.
        deadline: for rank 0's answer, in ``time.monotonic()``.

    Raises:
        StartError: rank 0 did not publish the speeds in time, or another rank has given up.
    """
    wanted = probes(hosts)
    if not wanted:
        return LinkSpeeds()
    _probe(store, prefix, rank, wanted, links)
    if rank == 0:
        speeds = _collect(store, prefix, hosts, wanted)
        store.set(prefix + "speeds", speeds.to_json())
        return speeds
    key, failed = prefix + "speeds", prefix + "failed"
    found = store.wait_all([key], remaining_s(deadline), failed)
    if key in found:
        return LinkSpeeds.from_json(found[key], len(set(hosts)))
    if failed in found:
        raise StartError(found[failed].decode("utf-8", "replace"))
    raise StartError("rank 0 did not publish the speed of the network in time")


def _probe(
    store: StoreClient,
    prefix: str,
    rank: int,
    wanted: Sequence[tuple[int, int]],
    links: Mapping[int, socket.socket],
) -> None:
    """Does this rank's part: it answers one host and measures another, at the same time."""
    sources = [source for source, target in wanted if target == rank]
    threads = [
        threading.Thread(target=_answer_quietly, args=(links[source],), daemon=True)
        for source in sources
    ]
    for thread in threads:
        thread.start()
    for source, target in wanted:
        if source != rank:
            continue
        text = "[]"
        with suppress(OSError):
            text = json.dumps(measure(links[target]))
        store.set(f"{prefix}probe/{source}", text.encode())
    for thread in threads:
        thread.join()  # all that it does has a deadline


def _answer_quietly(sock: socket.socket) -> None:
    with suppress(OSError):  # the other end reports it
        answer(sock)


def _collect(
    store: StoreClient, prefix: str, hosts: Sequence[int], wanted: Sequence[tuple[int, int]]
) -> LinkSpeeds:
    """On rank 0: waits for all probes, not long, and makes do with what came."""
    keys = {f"{prefix}probe/{source}": (source, target) for source, target in wanted}
    found = store.wait_all(list(keys), _PATIENCE_S + _MEASURE_S)
    measured = {}
    for key, probe in keys.items():
        with suppress(ValueError, TypeError):
            latency_s, rate = json.loads(found.get(key, b"[]"))
            measured[probe] = (float(latency_s), float(rate))
    missing = [probe for probe in wanted if probe not in measured]
    if missing:
        pairs = ", ".join(f"{source} to {target}" for source, target in missing[:8])
        _logger.warning(
            "the speed of the network could not be measured from rank %s; usual values are taken "
            "for these hosts, and collectives may be slower than they could be",
            pairs,
        )
    return combine(hosts, measured)


def _ping(sock: socket.socket, deadline: float) -> float:
    start = time.monotonic()
    sock.settimeout(remaining_s(deadline))
    sock.sendall(b"p")
    receive_exactly(sock, 1, deadline)
    return time.monotonic() - start


def _rate_of(arrived: Sequence[tuple[float, int]]) -> float:
    """Bytes per second, from times and the bytes that had arrived by then."""
    end_s, total = arrived[-1]
    start_s, before = next(sample for sample in arrived if sample[1] >= _SKIPPED * total)
    return (total - before) / (end_s - start_s) if end_s > start_s else 0.0
