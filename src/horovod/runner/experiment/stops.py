"""Stops a launch before its ranks end by themselves: for its time limit or poor results."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from horovod.runner.supervision.outcome import Outcome
from horovod.runner.supervision.supervisor import Alarm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# As the command timeout has it.
TIMEOUT_CODE = 124
_INTERVAL_S = 0.5


class Stops:
    """Watches a launch on a thread of its own, if there is anything to watch.

    Args:
        timeout_s: how long the run may take; None for any time.
        began_s: when it began, on the monotonic clock.
        why_in_vain: says why the run is not worth more time, or nothing; None if nobody asks.

    Attributes:
        is_late: whether the time was over.
        is_pruned: whether the run was not worth more time.
    """

    def __init__(
        self, timeout_s: float | None, began_s: float, why_in_vain: Callable[[], str] | None
    ) -> None:
        self.is_late = False
        self.is_pruned = False
        self._timeout_s = timeout_s
        self._began_s = began_s
        self._why_in_vain = why_in_vain
        self._outcome = Outcome(0)

    @contextmanager
    def watching(self) -> Iterator[Alarm | None]:
        """Watches as long as the block goes on.

        Yields:
            What ends the launch; None if nothing can.
        """
        if self._timeout_s is None and self._why_in_vain is None:
            yield None
            return
        ended = threading.Event()
        descriptor = os.eventfd(0, os.EFD_CLOEXEC)

        def watch() -> None:
            while not self._must_stop():
                if ended.wait(self._wait_s()):
                    return
            os.eventfd_write(descriptor, 1)

        thread = threading.Thread(target=watch, name="horovod-stops", daemon=True)
        thread.start()
        try:
            yield Alarm(descriptor, lambda: self._outcome)
        finally:
            ended.set()
            thread.join()
            os.close(descriptor)

    def _wait_s(self) -> float | None:
        if self._timeout_s is None:
            return _INTERVAL_S
        left_s = max(0.0, self._began_s + self._timeout_s - time.monotonic())
        return left_s if self._why_in_vain is None else min(_INTERVAL_S, left_s)

    def _must_stop(self) -> bool:
        if self._timeout_s is not None and time.monotonic() >= self._began_s + self._timeout_s:
            self.is_late = True
            text = f"the run has taken {self._timeout_s:g} s, which is its timeout"
            self._outcome = Outcome(TIMEOUT_CODE, text, stop_signal=signal.SIGTERM)
            return True
        why = self._why_in_vain() if self._why_in_vain is not None else ""
        if why:
            self.is_pruned = True
            self._outcome = Outcome(0, why, stop_signal=signal.SIGTERM)
        return bool(why)
