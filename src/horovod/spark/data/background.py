"""Threads that work ahead of whoever consumes their results."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# How long close() waits for threads that are busy.
_CLOSING_S = 10.0


class Background:
    """Runs functions on threads of its own, first come, first served.

    The threads start with the first function. They do not keep the process alive.

    Args:
        num_threads: at least 1.
        name: of the threads.

    Attributes:
        num_threads: how many there are, once each has had something to do.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self.num_threads = num_threads
        self._name = name
        self._changed = threading.Condition()
        self._tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called; a long function asks for it."""
        return self._closed

    def submit(self, function: Callable[[], object]) -> Future[Any]:
        """Lets a thread run a function.

        Raises:
            RuntimeError: it was closed.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError(f"{self._name}: it was closed")
            future: Future[Any] = Future()
            self._tasks.append((future, function))
            if len(self._threads) < self.num_threads:
                self._start()
            self._changed.notify()
            return future

    def close(self) -> None:
        """Cancels what has not begun, and ends the threads.

        Warns with a RuntimeWarning if one is still busy after 10 seconds.
        """
        with self._changed:
            self._closed = True
            tasks, threads = list(self._tasks), self._threads
            self._tasks.clear()
            self._threads = []
            self._changed.notify_all()
        for future, _ in tasks:
            future.cancel()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_CLOSING_S)
        if busy := [thread.name for thread in threads if thread.is_alive()]:
            warnings.warn(
                f"{', '.join(busy)}: still busy, and left behind", RuntimeWarning, stacklevel=2
            )

    def _start(self) -> None:
        thread = threading.Thread(
            target=self._work, name=f"{self._name} {len(self._threads)}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            _run(*task)
            # Not kept until the next one comes.
            del task

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._tasks) > 0)
            return None if self._closed else self._tasks.popleft()


def _run(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
