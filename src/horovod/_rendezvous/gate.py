"""Accepts connections and lets in only those that prove to know the job's secret.

Strangers cost little: a connection has one absolute deadline for the whole handshake, and at most
``max_pending`` may be unproven at a time. Then one has to go that has not said anything valid: the
oldest from the address that holds most of them, so that a crowd from elsewhere cannot push out a
friend. Friends speak at once, and are heard at once. Nothing is ever sent to a stranger.
"""

from __future__ import annotations

import errno
import ipaddress
import itertools
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._rendezvous.handshake import (
    HandshakeError,
    Hello,
    ReplayStore,
    ServerHandshake,
    Session,
    WrongSecretError,
)
from horovod._rendezvous.loop import READ, EventLoop
from horovod._rendezvous.sockets import close_quietly

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

HANDSHAKE_TIMEOUT_S = 5.0
MAX_PENDING = 256
_ACCEPTS_PER_TURN = 32
_MOST_NOTED = 8
_PAUSE_S = 0.1
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(frozen=True)
class Admitted:
    """A connection whose other end knows the secret; its receiver owns the non-blocking socket."""

    sock: socket.socket
    hello: Hello
    session: Session


@dataclass(frozen=True)
class Door:
    """One listener.

    Attributes:
        sock: listening, non-blocking; the gate closes it.
        admits: whether this listener expects such a hello.
        prepare: called with each new connection; False throws it out.
    """

    sock: socket.socket
    admits: Callable[[Hello], bool]
    prepare: Callable[[socket.socket], bool]


@dataclass(frozen=True, eq=False)
class _Pending:
    sock: socket.socket
    address: str
    handshake: ServerHandshake
    deadline: float


class Gate:
    """Serves its doors on an event loop; it lives on that loop's thread.

    Args:
        loop: not yet started.
        doors: the listeners.
        secret: of the job.
        on_admitted: takes over each proven connection, on the loop's thread.
        handshake_timeout_s: seconds that a connection may take from accept to proof.
        max_pending: connections that may be unproven at a time.
    """

    def __init__(
        self,
        loop: EventLoop,
        doors: Sequence[Door],
        secret: bytes,
        on_admitted: Callable[[Admitted], None],
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._loop = loop
        self._doors = tuple(doors)
        self._secret = secret
        self._on_admitted = on_admitted
        self._handshake_timeout_s = handshake_timeout_s
        self._max_pending = max_pending
        self._replay = ReplayStore()
        self._pending: dict[_Pending, None] = {}  # in the order of their deadlines
        # Those of them that have not sent a valid hello, by address.
        self._strangers: dict[str, dict[_Pending, None]] = {}
        self._paused_until: float | None = None
        # Who came with another secret, and how often: for messages about those that never came.
        self.wrong_secrets: Counter[str] = Counter()
        self._listen()
        loop.add_timer(self)

    def next_deadline(self) -> float | None:
        """When the oldest unproven connection must go, or the doors reopen."""
        deadlines = [] if self._paused_until is None else [self._paused_until]
        deadlines += [pending.deadline for pending in itertools.islice(self._pending, 1)]
        return min(deadlines, default=None)

    def expire(self, now: float) -> None:
        """Throws out whoever took too long; reopens the doors after a pause."""
        while self._pending and (oldest := next(iter(self._pending))).deadline <= now:
            self._drop(oldest)
        if self._paused_until is not None and self._paused_until <= now:
            self._paused_until = None
            self._listen()

    def keep(self, wanted: Callable[[Door], bool]) -> None:
        """Closes the other doors; who is already inside stays. On the loop's thread."""
        wanted_doors = tuple(door for door in self._doors if wanted(door))
        for door in set(self._doors).difference(wanted_doors):
            self._loop.unregister(door.sock)
            close_quietly(door.sock)
        self._doors = wanted_doors

    def close(self) -> None:
        """Closes the listeners and every unproven connection; after the loop has ended."""
        for door in self._doors:
            close_quietly(door.sock)
        for pending in list(self._pending):
            self._drop(pending)

    def _listen(self) -> None:
        for door in self._doors:
            self._loop.register(door.sock, READ, partial(self._accept, door))

    def _accept(self, door: Door, events: int) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = door.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._make_room()
                return
            self._begin(door, sock, network_of(address))

    def _make_room(self) -> None:
        """No descriptor is left: throw out a stranger, or else stop accepting for a moment."""
        if self._evict_stranger():
            return
        for door in self._doors:
            self._loop.unregister(door.sock)
        self._paused_until = time.monotonic() + _PAUSE_S

    def _begin(self, door: Door, sock: socket.socket, address: str) -> None:
        try:
            sock.setblocking(False)
            if not door.prepare(sock):
                sock.close()
                return
        except OSError:
            close_quietly(sock)
            return
        if len(self._pending) >= self._max_pending:
            self._evict_stranger()
        handshake = ServerHandshake(self._secret, door.admits, self._replay)
        deadline = time.monotonic() + self._handshake_timeout_s
        pending = _Pending(sock, address, handshake, deadline)
        self._pending[pending] = None
        self._strangers.setdefault(address, {})[pending] = None
        self._loop.register(sock, READ, partial(self._advance, pending))
        # A friend's hello is often here already; then no crowd behind him can push him out.
        self._advance(pending, READ)

    def _evict_stranger(self) -> bool:
        """Drops the oldest of the address with the most connections without a valid hello."""
        if not self._strangers:
            return False
        crowd = max(self._strangers.values(), key=len)
        self._drop(next(iter(crowd)))
        return True

    def _advance(self, pending: _Pending, events: int) -> None:
        handshake = pending.handshake
        try:
            received = pending.sock.recv_into(handshake.buffer())
            if received == 0:
                raise HandshakeError("closed")
            answer = handshake.filled(received)
            # So few bytes always fit into the buffer of a connection that sent nothing before.
            if answer and pending.sock.send(answer) != len(answer):
                raise HandshakeError("does not read")
        except BlockingIOError:
            return
        except (HandshakeError, OSError) as error:
            if isinstance(error, WrongSecretError):
                self._note_wrong_secret(pending.address)
            self._drop(pending)
            return
        if handshake.hello is not None:
            self._forget_stranger(pending)
        if handshake.session is not None and handshake.hello is not None:
            del self._pending[pending]
            self._loop.unregister(pending.sock)
            self._on_admitted(Admitted(pending.sock, handshake.hello, handshake.session))

    def _note_wrong_secret(self, address: str) -> None:
        if address in self.wrong_secrets or len(self.wrong_secrets) < _MOST_NOTED:
            self.wrong_secrets[address] += 1

    def _forget_stranger(self, pending: _Pending) -> None:
        crowd = self._strangers.get(pending.address, {})
        crowd.pop(pending, None)
        if not crowd:
            self._strangers.pop(pending.address, None)

    def _drop(self, pending: _Pending) -> None:
        del self._pending[pending]
        self._forget_stranger(pending)
        self._loop.unregister(pending.sock)
        close_quietly(pending.sock)


def network_of(address: object) -> str:
    """Return the network that counts as one source of connections.

    A host has many addresses on its loopback device, and 2**64 of IPv6.

    Args:
        address: as ``socket.accept`` tells it; of a unix socket it is empty.

    Example:
        >>> network_of(("127.9.9.9", 4711)), network_of(("10.0.0.2", 1)), network_of("")
        ('127.0.0.0/8', '10.0.0.2', '')
    """
    if not isinstance(address, tuple):
        return ""
    ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if ip.is_loopback:
        return "127.0.0.0/8"
    prefix = 64 if ip.version == 6 else 32
    return str(ipaddress.ip_network((ip, prefix), strict=False)).removesuffix("/32")
