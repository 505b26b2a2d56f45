"""Callbacks when operations have ended, without a thread that polls.

The engine puts what has ended into a :class:`horovod._native.Completions`, which needs no
interpreter. One thread for each process that wants callbacks waits there and calls them.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, cast

from horovod import _native
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._native import Handle


class CompletionThread:
    """A daemon thread that calls back when operations have ended; starts with the first call.

    It serves the operations of any number of engines. In the child of a fork it does not exist:
    make another one there.
    """

    def __init__(self, name: str = "hvd-completions") -> None:
        self._completions = _native.Completions()
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def call_when_done(self, handle: Handle, callback: Callable[[], object]) -> None:
        """Call ``callback`` on the thread once the operation has ended, also if it failed.

        ``handle.done()`` is true then, and ``handle.wait()`` returns or raises at once. Callbacks
        run one after the other in the order in which operations end; one that waits for another
        operation delays all others. What one raises goes to the log.

        Args:
            handle: may have ended already; each handle takes one callback.
            callback: called exactly once, unless :meth:`close` comes first.

        Raises:
            UsageError: the handle has a callback, or :meth:`close` was called.
        """
        self._start()
        handle.notify(self._completions, callback)

    def close(self, timeout_s: float | None = 5.0) -> None:
        """Call what has ended, drop the other callbacks, and wait for the end of the thread.

        May be called again, and by a callback, which does not wait.
        """
        self._completions.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _start(self) -> None:
        with self._lock:
            if self._completions.closed:
                raise UsageError("the thread that calls back was closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            callbacks = self._completions.take()
            if not callbacks and self._completions.closed:
                return
            while callbacks:
                callback = cast("Callable[[], object]", callbacks.pop(0))
                try:
                    callback()
                except Exception:
                    logging.getLogger("horovod").exception(
                        "a callback at the end of an operation failed"
                    )
                del callback  # what it refers to is not kept until the next one ends
