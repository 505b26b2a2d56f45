"""Finds out which of several addresses leads to the job's store."""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod._rendezvous.handshake import HandshakeError, Hello, greet
from horovod._rendezvous.sockets import close_quietly, remaining_s
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence

Endpoint = tuple[str, int]

_GREET_S = 5.0


@dataclass(frozen=True)
class StoreEndpoint:
    """An address of the store that answers.

    Attributes:
        endpoint: address and port of the store.
        own_address: of this host on the connection.
    """

    endpoint: Endpoint
    own_address: str

    @property
    def stays_here(self) -> bool:
        """Whether the store is on this host: the connection has the same address at both ends."""
        return self.endpoint[0] == self.own_address


def reach(endpoints: Sequence[Endpoint], secret: bytes, deadline: float) -> StoreEndpoint:
    """Tries all endpoints at once and takes the first that proves to know the secret.

    Args:
        endpoints: of one store, which listens already; addresses, not names.
        secret: of the job.
        deadline: in ``time.monotonic()``.

    Raises:
        AuthenticationError: those that can be reached have another secret.
        StartError: none of them can be reached.
    """
    refusing: list[Endpoint] = []
    with selectors.DefaultSelector() as selector:
        try:
            for endpoint in endpoints:
                _begin(selector, endpoint)
            while selector.get_map():
                for key, _ in selector.select(remaining_s(deadline)):
                    assert isinstance(key.fileobj, socket.socket)
                    selector.unregister(key.fileobj)
                    with key.fileobj as sock:
                        try:
                            return StoreEndpoint(key.data, _finish(sock, secret, deadline))
                        except AuthenticationError:
                            refusing.append(key.data)
                        except (OSError, StartError):
                            continue
        except TimeoutError:
            pass
        finally:
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                close_quietly(key.fileobj)
    if refusing:
        raise AuthenticationError(
            f"authentication failed: the store at {_names(refusing)} closed the connection during "
            "the handshake. It has another secret (set the same HOROVOD_SECRET_KEY or "
            "HOROVOD_SECRET_FILE everywhere), belongs to another job, or runs another version of "
            "Horovod"
        )
    names = _names(endpoints)
    raise StartError(
        f"the store of the job cannot be reached: tried {names}; does a firewall block "
        "connections between the hosts? Name the interface of the right network with "
        "HOROVOD_GLOO_IFACE"
    )


class AuthenticationError(StartError):
    """The other end was there and did not take our proof, or had none for us."""


def _names(endpoints: Sequence[Endpoint]) -> str:
    return ", ".join(f"{address} port {port}" for address, port in endpoints)


def _begin(selector: selectors.BaseSelector, endpoint: Endpoint) -> None:
    family = socket.AF_INET6 if ":" in endpoint[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sock.connect(endpoint)
    except BlockingIOError:
        pass
    except OSError:
        sock.close()
        return
    selector.register(sock, selectors.EVENT_WRITE, endpoint)


def _finish(sock: socket.socket, secret: bytes, deadline: float) -> str:
    """The own address of a connection that leads to the store.

    Raises:
        OSError, StartError: it leads nowhere, or to somebody else.
    """
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, "not reached")
    try:
        greet(sock, secret, Hello("store"), min(deadline, time.monotonic() + _GREET_S))
    except (ConnectionResetError, BrokenPipeError, HandshakeError) as refusal:
        raise AuthenticationError(str(refusal)) from refusal
    return str(sock.getsockname()[0])
