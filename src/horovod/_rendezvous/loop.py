"""One named thread that waits for sockets, deadlines and messages from other threads."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class Timer(Protocol):
    """Something that must be looked at when its deadline passes."""

    def next_deadline(self) -> float | None:
        """When ``expire`` is due, in ``time.monotonic()``; None for never."""

    def expire(self, now: float) -> None:
        """Handles everything that is due."""


class EventLoop:
    """A selector and its thread. All callbacks run on that thread.

    Args:
        name: of the thread.
        on_end: called on the thread when it ends, with the exception that ended it, if any.
            Whoever registered sockets closes them then.
    """

    def __init__(self, name: str, on_end: Callable[[BaseException | None], None]) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._posted: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._ended = False
        self._stopping = False
        self._on_end = on_end
        self._bell, self._bell_reader = socket.socketpair()
        self._bell.setblocking(False)
        self._bell_reader.setblocking(False)
        self.register(self._bell_reader, READ, self._silence_bell)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def add_timer(self, timer: Timer) -> None:
        """Asks ``timer`` for its deadline before each wait; only before ``start``."""
        self._timers.append(timer)

    def register(self, sock: socket.socket, events: int, callback: Callable[[int], None]) -> None:
        """Calls ``callback(events)`` when the socket is ready; on the loop's thread."""
        self._selector.register(sock, events, callback)

    def modify(self, sock: socket.socket, events: int, callback: Callable[[int], None]) -> None:
        """Changes what is waited for."""
        self._selector.modify(sock, events, callback)

    def unregister(self, sock: socket.socket) -> None:
        """Waits for this socket no longer; harmless when it was not registered."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def post(self, callback: Callable[[], None]) -> None:
        """Runs ``callback`` on the loop's thread soon; callable from any thread.

        It is dropped if the loop ends before; ``on_end`` tells.

        Raises:
            StartError: the loop has ended.
        """
        with self._lock:
            if self._ended:
                raise StartError(f"{self._thread.name} has ended")
            self._posted.append(callback)
            self._ring()

    def close(self) -> None:
        """Ends and joins the thread. Idempotent; not on the loop's thread."""
        with suppress(StartError):
            self.post(self._stop)
        self._thread.join()

    def _stop(self) -> None:
        self._stopping = True

    def _ring(self) -> None:
        # A full pipe means that the loop is going to wake up anyway.
        with suppress(BlockingIOError):
            self._bell.send(b"!")

    def _silence_bell(self, events: int) -> None:
        with suppress(BlockingIOError):
            self._bell_reader.recv(4096)

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while not self._stopping:
                self._step()
        except BaseException as error:
            failure = error
        finally:
            with self._lock:
                self._ended = True
                self._posted.clear()
            self._selector.close()
            self._bell.close()
            self._bell_reader.close()
            self._on_end(failure)

    def _step(self) -> None:
        for key, events in self._selector.select(self._wait_s()):
            # An earlier callback of this round may have closed the socket.
            if self._selector.get_map().get(key.fd) is key:
                key.data(events)
        self._run_posted()
        now = time.monotonic()
        for timer in self._timers:
            timer.expire(now)

    def _run_posted(self) -> None:
        while self._posted:
            self._posted.popleft()()

    def _wait_s(self) -> float | None:
        deadlines = [timer.next_deadline() for timer in self._timers]
        due = min((deadline for deadline in deadlines if deadline is not None), default=None)
        return None if due is None else max(0.0, due - time.monotonic())
