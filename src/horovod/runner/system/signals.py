"""Signals as bytes on a descriptor, for a loop that sleeps until something happens.

A handler of Python runs when the interpreter gets to it. A signal that comes just before the loop
goes to sleep would wait for whatever wakes it next; what the interpreter writes to a descriptor
does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def caught_signals() -> Iterator[int]:
    """Turns the signals that end a launcher into bytes, and does nothing else about them.

    A signal that is ignored, as nohup and background jobs of a shell do, stays ignored.

    Yields:
        The descriptor from which their numbers can be read.
    """

    def only_wake(signum: int, frame: FrameType | None) -> None:
        pass

    ignored = [each for each in _ENDING if signal.getsignal(each) is signal.SIG_IGN]
    with _wakeups_at() as read_end:
        caught = [each for each in _ENDING if each not in ignored]
        previous = {each: signal.signal(each, only_wake) for each in caught}
        try:
            yield read_end
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)


@contextlib.contextmanager
def wakeups() -> Iterator[int | None]:
    """Wakes a loop for the handlers of the program that called it, such as that of Ctrl-C.

    Yields:
        A descriptor that becomes readable when a signal comes; None outside of the main thread,
        where no handler runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    with _wakeups_at() as read_end:
        yield read_end


@contextlib.contextmanager
def _wakeups_at() -> Iterator[int]:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield read_end
    finally:
        signal.set_wakeup_fd(previous, warn_on_full_buffer=previous >= 0)
        os.close(read_end)
        os.close(write_end)
