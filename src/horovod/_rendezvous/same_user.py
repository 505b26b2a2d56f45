"""One text from rank 0 to the other ranks of its host, over an abstract Unix socket.

The kernel tells both ends which user the other one is, so the text reaches processes of this user
only, and a socket of another user is never believed. Nothing is left behind: the name is gone with
the process of rank 0, however that ends. It also keeps two jobs apart that would meet at the same
name, because only one process can have it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from typing import TYPE_CHECKING

from horovod._rendezvous.local import connect_unix, is_same_user, listen_unix
from horovod._rendezvous.sockets import remaining_s
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable

_RANK = struct.Struct(">I")
_MAX_TEXT_BYTES = 65536
_HELLO_S = 5.0
PAUSE_S = 0.02


class SameUserDoor:
    """The socket of rank 0.

    Args:
        name: of the socket, without the null byte in front.
        what: names the job in messages.

    Raises:
        StartError: another process has the name, or no socket can be opened.
    """

    def __init__(self, name: str, what: str) -> None:
        self._what = what
        try:
            self._sock = listen_unix(name)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StartError(
                    f"another process on this host is already rank 0 of {what}: give each job a "
                    "MASTER_PORT of its own (torchrun --standalone does)"
                ) from None
            raise StartError(f"rank 0 of {what} cannot open a socket: {error}") from error

    def give(self, text: str, ranks: Iterable[int], deadline: float) -> None:
        """Sends the text to each of these ranks, once; processes of other users get nothing.

        Args:
            text: ASCII, at most 64 KiB.
            ranks: all of which must come.
            deadline: in ``time.monotonic()``.

        Raises:
            StartError: some of them did not come in time.
        """
        missing = set(ranks)
        while missing:
            try:
                self._sock.settimeout(remaining_s(deadline))
                connection, _ = self._sock.accept()
            except TimeoutError:
                late = ", ".join(map(str, sorted(missing)[:16]))
                raise StartError(
                    f"rank {late} of {self._what} did not come to rank 0 in time; look for its "
                    "errors"
                ) from None
            with connection:
                missing.discard(_answer(connection, text, deadline))

    def close(self) -> None:
        """Gives the name back. Idempotent."""
        self._sock.close()


def _answer(connection: socket.socket, text: str, deadline: float) -> int:
    """Send the text to a process of this user that asks; return its rank, or -1."""
    if not is_same_user(connection):
        return -1
    try:
        connection.settimeout(min(remaining_s(deadline), _HELLO_S))
        question = connection.recv(_RANK.size, socket.MSG_WAITALL)
        connection.sendall(text.encode("ascii"))
        return int(_RANK.unpack(question)[0])
    except (OSError, struct.error):
        return -1  # it is gone, and may come again


def ask_same_user(name: str, rank: int, what: str, deadline: float) -> str:
    """Asks rank 0 of this host for its text, once; waits while it is busy with other ranks.

    Args:
        name: of the socket.
        rank: of this process.
        what: names the job in messages.
        deadline: in ``time.monotonic()``.

    Returns:
        The text; empty if nobody listens there.

    Raises:
        StartError: the socket belongs to another user.
    """
    try:
        return _ask(name, rank, deadline)
    except PermissionError:
        raise StartError(
            f"a process of another user than {os.geteuid()} listens where rank 0 of {what} "
            "should; choose another MASTER_PORT"
        ) from None
    except OSError:
        return ""


def await_same_user(name: str, rank: int, what: str, deadline: float) -> str:
    """Waits for rank 0 of this host and returns its text; arguments as of :func:`ask_same_user`.

    Raises:
        StartError: rank 0 did not come in time, or the socket belongs to another user.
    """
    while not (text := ask_same_user(name, rank, what, deadline)):
        if time.monotonic() + PAUSE_S >= deadline:
            raise StartError(
                f"rank 0 of {what} did not answer rank {rank} on this host in time; look for its "
                "errors, and whether another process is this rank already"
            )
        time.sleep(PAUSE_S)  # an abstract socket gives no sign when it appears
    return text


def _ask(name: str, rank: int, deadline: float) -> str:
    with connect_unix(name, deadline) as sock:
        sock.settimeout(remaining_s(deadline))
        sock.sendall(_RANK.pack(rank))
        text = bytearray()
        while part := sock.recv(4096):
            text += part
            if len(text) > _MAX_TEXT_BYTES:
                raise ConnectionResetError("rank 0 sent too much")
        return text.decode("ascii", "replace")
