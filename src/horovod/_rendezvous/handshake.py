"""Mutual proof that both ends of a connection know the job's secret.

Four messages of fixed size; the client speaks first, so that a listener never answers a stranger::

    client -> server   hello: magic, purpose, ranks, incarnation, nonce_c, MAC("hello", ...)
    server -> client   nonce_s, MAC("server", hello, nonce_s)
    client -> server   MAC("client", hello, nonce_s)
    server -> client   MAC("welcome", hello, nonce_s)

Every MAC is HMAC-SHA256 with the job's secret. The hello binds what the connection is for, so a
recorded one can only be repeated to the listener that has already seen it, which refuses. The
last message tells the client that the server holds the connection, so that it may safely try
again when it did not arrive.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._rendezvous.incarnation import Incarnation
from horovod._rendezvous.sockets import receive_some, send_parts
from horovod.errors import StartError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

MAGIC = b"horovod\x01"
PURPOSES = ("store", "launcher", "worker", "control", "data", "local", "speed")
NONCE_BYTES = 32
MAC_BYTES = 32

# magic, purpose, stream, rank, to_rank, generation, count, nonce_c
_HELLO = struct.Struct(">8s8sIIIII32s")
HELLO_BYTES = _HELLO.size + MAC_BYTES


class HandshakeError(StartError):
    """The other end did not prove to know the job's secret."""


class WrongSecretError(HandshakeError):
    """The other end speaks as one of a job does, but has another secret."""


@dataclass(frozen=True)
class Hello:
    """The request of a client: all of it is covered by the MAC.

    Attributes:
        purpose: one of ``PURPOSES``.
        rank: of the client (0 for the store's clients, which need not be ranks).
        to_rank: the rank that the client believes to reach.
        incarnation: of the engines that connect.
        stream: number of a data connection among those of the two ranks.
    """

    purpose: str
    rank: int = 0
    to_rank: int = 0
    incarnation: Incarnation = field(default_factory=Incarnation)
    stream: int = 0


@dataclass(frozen=True)
class Session:
    """Keys of one authenticated connection, one for each direction."""

    send_key: bytes = field(repr=False)
    receive_key: bytes = field(repr=False)


class ReplayStore:
    """The nonces that one listener has seen; it forgets the oldest beyond ``capacity``.

    Only nonces with a valid MAC are remembered, so a stranger cannot fill it. One that was
    forgotten gives a replayer an answer, but never a session: few are enough, of 100 bytes each in
    a job that may change its workers for weeks.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._order: deque[bytes] = deque()
        self._seen: set[bytes] = set()
        self._capacity = capacity

    def add(self, nonce: bytes) -> bool:
        """Remembers the nonce; returns False if it was there already."""
        if nonce in self._seen:
            return False
        if len(self._order) >= self._capacity:
            self._seen.discard(self._order.popleft())
        self._order.append(nonce)
        self._seen.add(nonce)
        return True


def greet(sock: socket.socket, secret: bytes, hello: Hello, deadline: float) -> Session:
    """Performs the client's side on a connected socket; the caller closes it on failure.

    Raises:
        HandshakeError: the server does not know the secret.
        OSError: the server closed the connection (it refused us), or the deadline passed.
    """
    handshake = ClientHandshake(secret, hello)
    send_parts(sock, (handshake.opening,), deadline)
    while handshake.session is None:
        answer = handshake.filled(receive_some(sock, handshake.buffer(), deadline))
        if answer:
            send_parts(sock, (answer,), deadline)
    return handshake.session


class ClientHandshake:
    """The client's side, without any I/O: the caller sends ``opening``, then fills ``buffer()``.

    Args:
        secret: of the job.
        hello: what the connection is for.

    Attributes:
        opening: the first message.
        session: set when the server has proven itself and holds the connection.
    """

    def __init__(self, secret: bytes, hello: Hello) -> None:
        self.opening = pack_hello(secret, hello, secrets.token_bytes(NONCE_BYTES))
        self.session: Session | None = None
        self._secret = secret
        self._data = bytearray(NONCE_BYTES + MAC_BYTES)
        self._num_filled = 0
        self._transcript = b""

    def buffer(self) -> memoryview:
        """Return the space for the next bytes; never longer than what this step may read."""
        return memoryview(self._data)[self._num_filled :]

    def filled(self, num_bytes: int) -> bytes:
        """Takes note of received bytes.

        Returns:
            What must be sent now, often nothing. The handshake is over when ``session`` is set.

        Raises:
            HandshakeError: the server does not know the secret; close.
        """
        self._num_filled += num_bytes
        if self._num_filled < len(self._data):
            return b""
        message, self._num_filled = bytes(self._data), 0
        if not self._transcript:
            transcript = self.opening + message[:NONCE_BYTES]
            _check(self._secret, b"server", transcript, message[NONCE_BYTES:])
            self._transcript, self._data = transcript, bytearray(MAC_BYTES)
            return _mac(self._secret, b"client", transcript)
        _check(self._secret, b"welcome", self._transcript, message)
        self.session = Session(
            send_key=_mac(self._secret, b"key to server", self._transcript),
            receive_key=_mac(self._secret, b"key to client", self._transcript),
        )
        return b""


class ServerHandshake:
    """The server's side, without any I/O: the caller fills ``buffer()`` and tells ``filled(n)``.

    Args:
        secret: of the job.
        admits: whether the listener expects such a hello.
        replay: nonces that this listener has seen.
    """

    def __init__(self, secret: bytes, admits: Callable[[Hello], bool], replay: ReplayStore) -> None:
        self._secret = secret
        self._admits = admits
        self._replay = replay
        self._data = bytearray(HELLO_BYTES)
        self._num_filled = 0
        self._transcript = b""
        self.hello: Hello | None = None
        self.session: Session | None = None

    def buffer(self) -> memoryview:
        """Return the space for the next bytes; never longer than what this step may read."""
        return memoryview(self._data)[self._num_filled :]

    def filled(self, num_bytes: int) -> bytes:
        """Takes note of received bytes.

        Returns:
            What must be sent now, often nothing. The handshake is over when ``session`` is set.

        Raises:
            HandshakeError: this is a stranger, or a repetition; close without an answer.
        """
        self._num_filled += num_bytes
        if self.hello is None:
            # A stranger is seldom worth waiting for the rest of his message.
            num_known = min(self._num_filled, len(MAGIC))
            if self._data[:num_known] != MAGIC[:num_known]:
                raise HandshakeError("not a hello")
        if self._num_filled < len(self._data):
            return b""
        message, self._num_filled = bytes(self._data), 0
        return self._take_hello(message) if self.hello is None else self._take_proof(message)

    def _take_hello(self, message: bytes) -> bytes:
        hello, nonce = unpack_hello(self._secret, message)
        if not self._admits(hello):
            raise HandshakeError(f"unexpected {hello}")
        if not self._replay.add(nonce):
            raise HandshakeError(f"repeated {hello}")
        self.hello = hello
        answer = secrets.token_bytes(NONCE_BYTES)
        self._transcript = message + answer
        self._data = bytearray(MAC_BYTES)
        return answer + _mac(self._secret, b"server", self._transcript)

    def _take_proof(self, message: bytes) -> bytes:
        _check(self._secret, b"client", self._transcript, message)
        self.session = Session(
            send_key=_mac(self._secret, b"key to client", self._transcript),
            receive_key=_mac(self._secret, b"key to server", self._transcript),
        )
        return _mac(self._secret, b"welcome", self._transcript)


def pack_hello(secret: bytes, hello: Hello, nonce: bytes) -> bytes:
    """The first message, of ``HELLO_BYTES``."""
    purpose = hello.purpose.encode("ascii")
    ranks, incarnation = (hello.rank, hello.to_rank), hello.incarnation
    opening = _HELLO.pack(
        MAGIC, purpose, hello.stream, *ranks, incarnation.generation, incarnation.count, nonce
    )
    return opening + _mac(secret, b"hello", opening)


def unpack_hello(secret: bytes, message: bytes) -> tuple[Hello, bytes]:
    """Checks the first message and returns it with its nonce.

    Raises:
        WrongSecretError: the MAC is not by the job's secret.
        HandshakeError: the purpose is unknown.
    """
    if not _is_by(secret, b"hello", message[: _HELLO.size], message[_HELLO.size :]):
        raise WrongSecretError("it has another secret than this job")
    magic, purpose, stream, rank, to_rank, generation, count, nonce = _HELLO.unpack_from(message)
    name = purpose.rstrip(b"\0").decode("ascii", "replace")
    if magic != MAGIC or name not in PURPOSES:
        raise HandshakeError("unknown purpose or version")
    return Hello(name, rank, to_rank, Incarnation(generation, count), stream), nonce


def _mac(secret: bytes, label: bytes, message: bytes) -> bytes:
    # A zero byte ends the label, so that no label and message can be read as another pair.
    return hmac.digest(secret, label + b"\0" + message, "sha256")


def _is_by(secret: bytes, label: bytes, message: bytes, mac: bytes) -> bool:
    return hmac.compare_digest(_mac(secret, label, message), mac)


def _check(secret: bytes, label: bytes, message: bytes, mac: bytes) -> None:
    if not _is_by(secret, label, message, mac):
        raise HandshakeError("the other end does not know this job's secret")
