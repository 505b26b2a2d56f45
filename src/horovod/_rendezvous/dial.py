"""Connecting to a listener of this job and proving to belong to it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from horovod._rendezvous.handshake import HandshakeError, Hello, Session, greet
from horovod._rendezvous.sockets import close_quietly, remaining_s
from horovod.errors import StartError

_MAX_REFUSALS = 4
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

OpenSocket = Callable[[float], socket.socket]


def dial(
    open_socket: OpenSocket, secret: bytes, hello: Hello, deadline: float, what: str
) -> tuple[socket.socket, Session]:
    """Opens a connection and performs the handshake.

    A listener that is flooded by strangers may throw out a friend before it has heard him, so
    being refused counts only when it happens a few times in a row.

    Args:
        open_socket: makes a connected socket before the deadline that it is given.
        secret: of the job.
        hello: what the connection is for.
        deadline: in ``time.monotonic()``.
        what: names the other end in messages, with its address.

    Returns:
        The socket, owned by the caller, and its keys.

    Raises:
        StartError: it could not be reached in time, or it does not share our secret.
    """
    pause_s = _FIRST_PAUSE_S
    for refusals_left in reversed(range(_MAX_REFUSALS)):
        sock = None
        try:
            sock = open_socket(deadline)
            return sock, greet(sock, secret, hello, deadline)
        except HandshakeError as error:
            close_quietly(sock)
            raise HandshakeError(f"{what} did not prove to know this job's secret") from error
        except TimeoutError as error:
            close_quietly(sock)
            raise StartError(f"{what} did not answer in time") from error
        except OSError as error:
            close_quietly(sock)
            if sock is None:
                raise StartError(f"cannot connect to {what}: {error.strerror or error}") from error
            if not refusals_left:
                break
        except BaseException:
            close_quietly(sock)
            raise
        pause_s = wait_before_retry(pause_s, deadline)
    raise StartError(
        f"{what} closed the connection during the handshake, {_MAX_REFUSALS} times: it belongs to "
        "another job (its secret differs) or runs another version of Horovod"
    )


def retrying(open_socket: OpenSocket, *errors: type[OSError]) -> OpenSocket:
    """Wraps ``open_socket`` to try again, until the deadline, after one of these errors."""

    def open_patiently(deadline: float) -> socket.socket:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return open_socket(deadline)
            except errors:
                if time.monotonic() + pause_s >= deadline:
                    raise
                pause_s = wait_before_retry(pause_s, deadline)

    return open_patiently


def wait_before_retry(pause_s: float, deadline: float) -> float:
    """Pauses, as a listener gives no sign when it is ready, and returns the next, longer pause."""
    time.sleep(min(pause_s, max(0.0, remaining_s(deadline))))
    return min(2 * pause_s, _LONGEST_PAUSE_S)
