"""Time that passes when a test says so."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_REAL_TIMEOUT_S = 30.0


class ManualClock:
    """A clock for code that takes one, such as ``policy(clock=time.monotonic, sleep=time.sleep)``.

    Calling it gives the time. Every method may be called from any thread.

    Args:
        start_s: the time at the beginning, in seconds.

    Example:
        >>> clock = ManualClock()
        >>> clock.advance(2.5)
        >>> clock()
        2.5
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._wakes_s: list[float] = []
        self._changed = threading.Condition()

    def __call__(self) -> float:
        """The time in seconds."""
        with self._changed:
            return self._now_s

    def advance(self, seconds: float) -> None:
        """Lets time pass, and wakes whose sleep is over.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot advance by {seconds:g} s: time does not go back")
        with self._changed:
            self._now_s += seconds
            self._changed.notify_all()

    def sleep(self, seconds: float) -> None:
        """Waits until another thread has advanced the clock by so much.

        Raises:
            TimeoutError: nobody did, within 30 s of real time.
        """
        with self._changed:
            until_s = self._now_s + seconds
            self._wakes_s.append(until_s)
            self._changed.notify_all()
            try:
                self._wait(lambda: self._now_s >= until_s, f"advanced the clock to {until_s:g} s")
            finally:
                self._wakes_s.remove(until_s)

    def wait_for_sleepers(self, count: int = 1) -> None:
        """Waits until so many threads sleep on this clock, so that the test may advance it.

        Raises:
            TimeoutError: they did not, within 30 s of real time.
        """
        with self._changed:
            self._wait(
                lambda: sum(until_s > self._now_s for until_s in self._wakes_s) >= count,
                f"made {count} threads sleep on the clock",
            )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _REAL_TIMEOUT_S
        while not condition():
            if not self._changed.wait(max(0.0, deadline_s - time.monotonic())):
                raise TimeoutError(f"nobody {what} within {_REAL_TIMEOUT_S:g} s of real time")
