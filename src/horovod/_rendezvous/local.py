"""Links between ranks of one host: an abstract unix socket that carries descriptors.

The socket stays open afterward: its end tells that the peer has died.
"""

from __future__ import annotations

import array
import os
import secrets
import socket
import struct
from dataclasses import dataclass
from typing import Protocol

from horovod._rendezvous.sockets import remaining_s

_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid
_INBOX = struct.Struct(">II")  # rank, local index
_NUM_DESCRIPTORS = 2


class Port(Protocol):
    """A rank's inbox in shared memory, as ``_native.LocalPort``."""

    @property
    def segment_fd(self) -> int:
        """The memory."""

    @property
    def doorbell_fd(self) -> int:
        """The eventfd that wakes its owner."""


@dataclass(frozen=True)
class Inbox:
    """A peer's port, as it came over the link; the receiver owns the descriptors."""

    rank: int
    local_index: int
    segment_fd: int
    doorbell_fd: int

    def close(self) -> None:
        """Closes both descriptors."""
        os.close(self.segment_fd)
        os.close(self.doorbell_fd)


def make_unix_name() -> str:
    """A name that nobody can guess; abstract names have no file whose mode could protect them."""
    return f"horovod-{secrets.token_hex(16)}"


def listen_unix(name: str) -> socket.socket:
    """Opens a non-blocking listener with an abstract name.

    Raises:
        OSError: the name is taken, or no descriptor is left.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0{name}")
        sock.listen(socket.SOMAXCONN)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def connect_unix(name: str, deadline: float) -> socket.socket:
    """Connects to an abstract name.

    Raises:
        BlockingIOError: too many connections wait there at the moment.
        OSError: nobody listens, or another user does.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(remaining_s(deadline))
        sock.connect(f"\0{name}")
        if not is_same_user(sock):
            raise PermissionError("the socket belongs to another user")
    except OSError:
        sock.close()
        raise
    return sock


def is_same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end of a unix socket runs as our user."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    return bool(uid == os.geteuid())


def send_inbox(
    sock: socket.socket, rank: int, local_index: int, port: Port, deadline: float
) -> None:
    """Sends this rank's port to the peer.

    Raises:
        OSError: the peer is gone, or does not read before the deadline.
    """
    sock.settimeout(remaining_s(deadline))
    # So few bytes travel in one piece, with the descriptors.
    socket.send_fds(sock, [_INBOX.pack(rank, local_index)], [port.segment_fd, port.doorbell_fd])


def receive_inbox(sock: socket.socket, deadline: float) -> Inbox:
    """Waits for the peer's port. The descriptors are close-on-exec.

    Raises:
        OSError: the peer is gone, sent something else, or nothing before the deadline.
    """
    sock.settimeout(remaining_s(deadline))
    descriptors = array.array("i")
    message, ancillary, flags, _ = sock.recvmsg(
        _INBOX.size,
        socket.CMSG_SPACE(_NUM_DESCRIPTORS * descriptors.itemsize),
        socket.MSG_CMSG_CLOEXEC,
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    complete = len(message) == _INBOX.size and len(descriptors) == _NUM_DESCRIPTORS
    if not complete or flags & socket.MSG_CTRUNC:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ConnectionResetError("the peer is gone, or sent something else than its port")
    rank, local_index = _INBOX.unpack(message)
    return Inbox(rank, local_index, descriptors[0], descriptors[1])
