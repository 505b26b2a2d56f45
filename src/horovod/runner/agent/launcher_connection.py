"""The agent's own connection to the launcher: finds the way there, and tells when it is cut.

ssh says nothing to the agent when the launcher's host vanishes or the network between is cut; sshd
waits for hours. On this connection the kernels of both ends look after one another, also while the
launcher itself is stopped or waits for a slow console.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from horovod._rendezvous.handshake import Hello, greet
from horovod._rendezvous.sockets import close_quietly
from horovod.errors import StartError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from horovod.runner.protocol.invitation import Invitation

TRY_S = 8.0
_GREET_S = 3.0
# Silence, and as long behind each probe: a launcher whose host vanished is noticed after 6 s.
_PAUSE_S = 2
_NUM_PROBES = 2


class LauncherConnection:
    """Tries all endpoints of the store at once and keeps the connections that prove themselves.

    Args:
        loop: of the agent.
        invitation: where the store listens, and its secret.
        on_reached: called with the number of each endpoint that answered, and the address of this
            host on the way there.
        on_given_up: called once when every endpoint has answered or failed.
        on_cut: called when the connection that was kept breaks.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        invitation: Invitation,
        on_reached: Callable[[int, str], None],
        on_given_up: Callable[[], None],
        on_cut: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._invitation = invitation
        self._on_reached = on_reached
        self._on_given_up = on_given_up
        self._on_cut = on_cut
        self._trying: dict[int, socket.socket] = {}
        self._found: dict[int, socket.socket] = {}
        self._over = False
        self._timer = loop.call_later(TRY_S, self._give_up)
        for index, (address, port) in enumerate(invitation.endpoints):
            self._try(index, address, port)
        self._check_end()

    def _try(self, index: int, address: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        with suppress(BlockingIOError):
            try:
                sock.connect((address, port))
            except BlockingIOError:
                raise
            except OSError:
                sock.close()
                return
        self._trying[index] = sock
        self._loop.add_writer(sock, partial(self._on_connected, index))

    def _on_connected(self, index: int) -> None:
        sock = self._trying.pop(index)
        self._loop.remove_writer(sock)
        try:
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, "not reached")
            # Short and rare enough to wait for; the other end answers from a thread of its own.
            greet(sock, self._invitation.secret, Hello("store"), time.monotonic() + _GREET_S)
        except (OSError, StartError):
            close_quietly(sock)
        else:
            self._found[index] = sock
            self._on_reached(index, str(sock.getsockname()[0]))
        self._check_end()

    def _give_up(self) -> None:
        for sock in self._trying.values():
            self._loop.remove_writer(sock)
            close_quietly(sock)
        self._trying.clear()
        self._check_end()

    def _check_end(self) -> None:
        if not self._trying and not self._over:
            self._over = True
            self._timer.cancel()
            self._loop.call_soon(self._on_given_up)

    def keep(self, address: str, port: int) -> str:
        """Watches the connection to one endpoint and closes the others.

        Args:
            address, port: the endpoint that the launcher chose.

        Returns:
            The address of this host on the way there; empty if that endpoint was not reached.
        """
        self._over = True
        self._give_up()
        self._timer.cancel()
        own = ""
        for index, sock in self._found.items():
            if self._invitation.endpoints[index] == (address, port):
                own = str(sock.getsockname()[0])
                self._watch(sock)
            else:
                close_quietly(sock)
        return own

    def _watch(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PAUSE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PAUSE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _NUM_PROBES)
        self._loop.add_reader(sock, partial(self._on_news, sock))

    def _on_news(self, sock: socket.socket) -> None:
        try:
            if sock.recv(1024):
                return  # the store has nothing to say here
        except BlockingIOError:
            return
        except OSError:
            pass
        self._loop.remove_reader(sock)
        close_quietly(sock)
        self._on_cut()
