"""Sockets with absolute deadlines (values of ``time.monotonic()``), and how they are opened."""

from __future__ import annotations

import ipaddress
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence

_JOIN_BYTES = 64 * 1024

PEER_SILENCE_S = 15
"""Seconds after which a host that answers nothing counts as lost; at least 5. Shorter troubles of a
network are waited out."""

LAUNCHER_SILENCE_S = 6
"""The same between launchers, which must have ended their ranks 10 s after the network was cut."""

ELASTIC_SILENCE_S = 4
"""The same between ranks of elastic jobs, and between them and the store: others go on without a
host, so it is better given up than waited for."""

SILENCES = {"launcher": LAUNCHER_SILENCE_S, "worker": ELASTIC_SILENCE_S}
"""By the purpose of a connection to the store."""

_NUM_PROBES = 4
_NUM_CLOSE_PROBES = {LAUNCHER_SILENCE_S: 2, ELASTIC_SILENCE_S: 3}
_LOOK_UP_PAUSE_S = 0.5


def remaining_s(deadline: float) -> float:
    """Seconds until the deadline.

    Raises:
        TimeoutError: the deadline has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


def receive_exactly(sock: socket.socket, num_bytes: int, deadline: float) -> bytes:
    """Receives exactly ``num_bytes``.

    Raises:
        OSError: the peer closed the connection, it broke, or the deadline passed.
    """
    data = bytearray(num_bytes)
    view = memoryview(data)
    while view:
        view = view[receive_some(sock, view, deadline) :]
    return bytes(data)


def receive_some(sock: socket.socket, view: memoryview, deadline: float) -> int:
    """Receives at least one byte into ``view`` and returns how many.

    Raises:
        OSError: the peer closed the connection, it broke, or the deadline passed.
    """
    sock.settimeout(remaining_s(deadline))
    received = sock.recv_into(view)
    if received == 0:
        raise ConnectionResetError("the peer closed the connection")
    return received


def send_parts(sock: socket.socket, parts: Sequence[bytes], deadline: float) -> None:
    """Sends all parts one after the other; small ones leave in one packet.

    Raises:
        OSError: the connection broke, or the deadline passed.
    """
    for part in join_small(parts):
        sock.settimeout(remaining_s(deadline))
        sock.sendall(part)


def join_small(parts: Sequence[bytes]) -> list[bytes]:
    """Return the bytes in few pieces, so that small parts do not cost a system call each.

    Large parts stay as they are: nothing of them is copied. None of the pieces is empty.
    """
    joined: list[bytes] = []
    small: list[bytes] = []
    num_small_bytes = 0
    for part in parts:
        if len(part) > _JOIN_BYTES:
            joined += filter(None, (b"".join(small), part))
            small, num_small_bytes = [], 0
            continue
        small.append(part)
        num_small_bytes += len(part)
        if num_small_bytes > _JOIN_BYTES:
            joined.append(b"".join(small))
            small, num_small_bytes = [], 0
    joined += filter(None, (b"".join(small),))
    return joined


def set_tcp_options(sock: socket.socket) -> None:
    """Turns delays off, and keepalive on so that a host that vanished is noticed.

    Probes are sent only while nothing else is on its way, see :func:`limit_silence`.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _probe(sock, PEER_SILENCE_S, _NUM_PROBES)


def _probe(sock: socket.socket, silence_s: int, num_probes: int) -> None:
    """Has the kernel give the connection up after that much silence, and so many probes."""
    pause_s = silence_s // (num_probes + 1)  # before the first probe, and behind each
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, num_probes)


def watch_closely(sock: socket.socket, silence_s: int) -> None:
    """Notices soon that the other end, or the way there, has vanished.

    For connections that carry too little to fill the window of a process that is stopped.

    Args:
        sock: a TCP connection.
        silence_s: LAUNCHER_SILENCE_S or ELASTIC_SILENCE_S.
    """
    _probe(sock, silence_s, _NUM_CLOSE_PROBES[silence_s])
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * silence_s)


def limit_silence(sock: socket.socket) -> None:
    """Gives up a connection also if what was sent stays unacknowledged; else that takes 15 minutes.

    For connections that carry little. The kernel applies this limit as well to a peer that is alive
    but reads nothing until its window is full: a stopped process must not look like a lost host.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * PEER_SILENCE_S)


def listen_tcp(address: str, port: int = 0) -> socket.socket:
    """Opens a non-blocking listener on one address of this host.

    Args:
        address: an IPv4 or IPv6 address, or a name that stands for one. An address that means
            "all interfaces" is refused: a job listens only where its ranks must reach it.
        port: 0 lets the system choose.

    Raises:
        StartError: the address is unknown, not of this host, all interfaces, or the port is taken.
    """
    sock = None
    try:
        family, _, _, _, target = socket.getaddrinfo(
            address or "0.0.0.0", port, type=socket.SOCK_STREAM
        )[0]
        if ipaddress.ip_address(str(target[0]).partition("%")[0]).is_unspecified:
            raise StartError(
                f"refusing to listen on all interfaces ({address!r}); give the one address that "
                "the hosts of the job can reach"
            )
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(socket.SOMAXCONN)
        sock.setblocking(False)
        return sock
    except (OSError, OverflowError) as error:
        close_quietly(sock)
        raise StartError(f"cannot listen on {address} port {port}: {error}") from error


def resolve(host: str, deadline: float) -> list[str]:
    """The addresses that a name stands for, IPv4 first.

    A name that is not known yet is asked for again: that of a pod appears when it runs.

    Raises:
        StartError: it is not known before the deadline.
    """
    while True:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            break
        except socket.gaierror as error:
            if time.monotonic() + _LOOK_UP_PAUSE_S >= deadline:
                raise StartError(
                    f"the name {host!r} cannot be resolved: {error.strerror}"
                ) from error
            time.sleep(_LOOK_UP_PAUSE_S)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def connect_tcp(address: str, port: int, deadline: float) -> socket.socket:
    """Connects to a TCP listener.

    Raises:
        OSError: it could not be reached before the deadline.
    """
    sock = socket.create_connection((address, port), timeout=remaining_s(deadline))
    try:
        # Dialling a free port of the own host can connect a socket with itself.
        if sock.getsockname() == sock.getpeername():
            raise ConnectionRefusedError(f"nobody listens on {address} port {port}")
        set_tcp_options(sock)
    except OSError:
        sock.close()
        raise
    return sock


def close_quietly(sock: socket.socket | None) -> None:
    """Closes a socket, also one that is already broken."""
    if sock is not None:
        with suppress(OSError):
            sock.close()
