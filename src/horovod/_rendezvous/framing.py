"""Messages on an authenticated connection that nobody can change, repeat, reorder or inject.

A frame is ``length (8 bytes) | MAC of the length | body | MAC of the body``. Both MACs cover the
number of the frame in its direction and use that direction's key. The length has a MAC of its own
so that it can be trusted before memory is reserved.
"""

from __future__ import annotations

import hmac
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod._rendezvous.handshake import MAC_BYTES, Session
from horovod._rendezvous.sockets import receive_some, send_parts
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 1024**3

_LENGTH = struct.Struct(">Q")
HEAD_BYTES = _LENGTH.size + MAC_BYTES


class FrameError(StartError):
    """A frame was changed on its way, or is larger than allowed."""


class FrameWriter:
    """Wraps the messages of one direction; not for several threads."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._counter = 0

    def frame(self, parts: Sequence[bytes]) -> list[bytes]:
        """Returns the byte strings to send, in order, for a message made of ``parts``."""
        length = _LENGTH.pack(sum(map(len, parts)))
        head = length + _mac(self._key, b"head", self._counter, (length,))
        tail = _mac(self._key, b"body", self._counter, parts)
        self._counter += 1
        return [head, *parts, tail]


class FrameReader:
    """Unwraps the messages of one direction, without any I/O.

    The caller fills ``buffer()`` and tells ``filled(n)``.

    Args:
        key: of this direction.
        limit_bytes: the largest body that is accepted.
    """

    def __init__(self, key: bytes, limit_bytes: int = GIB) -> None:
        self._key = key
        self._limit_bytes = limit_bytes
        self._counter = 0
        self._in_body = False
        self._expect(HEAD_BYTES)

    def buffer(self) -> memoryview:
        """Return the space for the next bytes; it never reaches into the following frame."""
        return self._view[self._num_filled :]

    def filled(self, num_bytes: int) -> memoryview | None:
        """Takes note of received bytes.

        Returns:
            The body when the frame is complete; the memory belongs to the caller from then on.

        Raises:
            FrameError: the frame is forged, damaged or too large; the connection is unusable.
        """
        self._num_filled += num_bytes
        if self._num_filled < len(self._view):
            return None
        view = self._view
        if not self._in_body:
            self._in_body = True
            self._expect(self._check_head(view) + MAC_BYTES)
            return None
        body = view[:-MAC_BYTES]
        self._check(b"body", body, view[-MAC_BYTES:])
        self._counter += 1
        self._in_body = False
        self._expect(HEAD_BYTES)
        return body

    def _expect(self, num_bytes: int) -> None:
        self._view = memoryview(bytearray(num_bytes))
        self._num_filled = 0

    def _check_head(self, view: memoryview) -> int:
        self._check(b"head", view[: _LENGTH.size], view[_LENGTH.size :])
        length = int(_LENGTH.unpack_from(view)[0])
        if length > self._limit_bytes:
            raise FrameError(f"a message of {length} bytes is above {self._limit_bytes}")
        return length

    def _check(self, label: bytes, message: memoryview, mac: memoryview) -> None:
        expected = _mac(self._key, label, self._counter, (message,))
        if not hmac.compare_digest(expected, mac):
            raise FrameError("a message was changed, repeated or injected on its way")


class Channel:
    """A blocking socket that carries frames; the client's end. Not for several threads.

    Args:
        sock: connected and authenticated; the channel owns it from now on.
        session: its keys.
        limit_bytes: the largest message that is accepted.
    """

    def __init__(self, sock: socket.socket, session: Session, limit_bytes: int = GIB) -> None:
        self._sock = sock
        self._writer = FrameWriter(session.send_key)
        self._reader = FrameReader(session.receive_key, limit_bytes)

    def send(self, parts: Sequence[bytes], deadline: float) -> None:
        """Sends one message.

        Raises:
            OSError: the connection broke, or the deadline passed; the channel is unusable.
        """
        send_parts(self._sock, self._writer.frame(parts), deadline)

    def receive(self, deadline: float) -> memoryview:
        """Waits for the next message.

        Raises:
            FrameError: it was forged, damaged or too large; the channel is unusable.
            OSError: the connection broke, or the deadline passed; the channel is unusable.
        """
        while True:
            body = self._reader.filled(receive_some(self._sock, self._reader.buffer(), deadline))
            if body is not None:
                return body

    def interrupt(self) -> None:
        """Breaks the connection, from any thread; whoever waits for a message gets an OSError."""
        with suppress(OSError):  # it is broken already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        self._sock.close()


def _mac(
    key: bytes, label: bytes, counter: int, parts: Sequence[bytes] | Sequence[memoryview]
) -> bytes:
    mac = hmac.new(key, label + _LENGTH.pack(counter), "sha256")
    for part in parts:
        mac.update(part)
    return mac.digest()
