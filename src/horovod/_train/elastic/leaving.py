"""SIGTERM, by which a host that is about to go lets its workers leave in good order."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from horovod._rank import context

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextmanager
def leave_politely() -> Iterator[None]:
    """Inside the block, SIGTERM lets an elastic worker leave where it looks for changes next.

    A second SIGTERM ends the process as ever. A program that handles the signal itself keeps its
    handler, and so does a block that is not in the main thread.
    """
    worker = context.elastic_worker()
    in_main = threading.current_thread() is threading.main_thread()
    if worker is None or not in_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    owner = os.getpid()

    def leave(number: int, frame: FrameType | None) -> None:
        if worker.leaving or os.getpid() != owner:  # or a child, say of a DataLoader
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        worker.leave_soon("SIGTERM")

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
