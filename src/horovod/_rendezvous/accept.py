"""The thread that accepts the higher ranks' connections while this rank dials the lower ones."""

from __future__ import annotations

import queue
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod._rendezvous.gate import Admitted, Door, Gate
from horovod._rendezvous.local import is_same_user, listen_unix, make_unix_name
from horovod._rendezvous.loop import EventLoop
from horovod._rendezvous.sockets import (
    close_quietly,
    listen_tcp,
    remaining_s,
    set_tcp_options,
)
from horovod.errors import StartError

if TYPE_CHECKING:
    import socket

    from horovod._rendezvous.handshake import Hello
    from horovod._rendezvous.incarnation import Incarnation


class Acceptor:
    """Listeners for ranks of this and of other hosts; leaving the context closes all of it.

    Args:
        address: of this host, where the ranks of other hosts connect.
        rank, size: of this process in the job; only higher ranks are let in.
        incarnation: of the engines that connect.
        secret: of the job.

    Raises:
        StartError: it cannot listen.
    """

    def __init__(
        self, address: str, rank: int, size: int, incarnation: Incarnation, secret: bytes
    ) -> None:
        self._rank = rank
        self._size = size
        self._incarnation = incarnation
        self._admitted: queue.SimpleQueue[Admitted | BaseException] = queue.SimpleQueue()
        self.unix_name = make_unix_name()
        tcp = listen_tcp(address)
        unix = None
        try:
            unix = listen_unix(self.unix_name)
            self._loop = EventLoop(f"horovod-accept-{rank}", self._end)
        except OSError as error:
            close_quietly(tcp)
            close_quietly(unix)
            raise StartError(f"rank {rank} cannot listen for its peers: {error}") from error
        self.tcp_address: str = tcp.getsockname()[0]
        self.tcp_port: int = tcp.getsockname()[1]
        doors = (
            Door(tcp, self._admits_remote, _prepare_tcp),
            Door(unix, self._admits_local, is_same_user),
        )
        self._gate = Gate(self._loop, doors, secret, self._admitted.put)
        self._loop.start()

    def take(self, deadline: float) -> Admitted:
        """Waits for the next proven connection; the caller owns its socket.

        Raises:
            TimeoutError, queue.Empty: none came before the deadline.
            StartError: the accepting thread has ended.
        """
        admitted = self._admitted.get(timeout=remaining_s(deadline))
        if isinstance(admitted, TimeoutError):
            raise admitted
        if isinstance(admitted, BaseException):
            raise StartError("the thread that accepts connections has ended") from admitted
        return admitted

    def expect_one_less(self) -> None:
        """Ends one call of :meth:`take` with a TimeoutError, as a peer will not come."""
        self._admitted.put(TimeoutError("nobody will come any more"))

    def close(self) -> None:
        """Closes the listeners and all connections that nobody took; joins the thread."""
        self._loop.close()
        with suppress(queue.Empty):
            while True:
                admitted = self._admitted.get_nowait()
                if isinstance(admitted, Admitted):
                    close_quietly(admitted.sock)

    def __enter__(self) -> Acceptor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _end(self, failure: BaseException | None) -> None:
        self._gate.close()
        if failure is not None:
            self._admitted.put(failure)

    def _admits_local(self, hello: Hello) -> bool:
        return hello.purpose == "local" and self._is_for_us(hello)

    def _admits_remote(self, hello: Hello) -> bool:
        return hello.purpose in ("control", "data", "speed") and self._is_for_us(hello)

    def _is_for_us(self, hello: Hello) -> bool:
        expected = hello.to_rank == self._rank and hello.incarnation == self._incarnation
        return expected and self._rank < hello.rank < self._size


def _prepare_tcp(sock: socket.socket) -> bool:
    set_tcp_options(sock)
    return True
