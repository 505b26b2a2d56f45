"""The store's keys and values, and who waits for which of them. Pure: no I/O, one thread."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Found = dict[str, bytes]

# So many deadlines are noted before those of waits that have ended are taken out.
_LEAST_DEADLINES = 64


@dataclass(eq=False)
class Waiter:
    """Somebody who waits until all ``keys`` exist, or ``stop_key`` does.

    Attributes:
        keys: what is asked for.
        stop_key: ends the wait early; empty for none.
        answer: called once with those of the keys (and the stop key) that exist.
        num_left: how many keys are to be looked at: those behind them have been seen to exist.
        watched: the last of those that are left; empty before the first look.
        done: whether it was answered, or has been cancelled.
    """

    keys: tuple[str, ...]
    stop_key: str
    answer: Callable[[Found], None]
    num_left: int = field(init=False)
    watched: str = ""
    done: bool = False

    def __post_init__(self) -> None:
        self.num_left = len(self.keys)


class Table:
    """Keys and values, with waiters that are answered exactly once.

    A waiter is noted at one missing key at a time, so a thousand that wait for a thousand keys cost
    as much as they read.
    """

    def __init__(self) -> None:
        self._values: Found = {}
        self._lengths: dict[str, int] = {}
        self._waiting: dict[str, dict[Waiter, None]] = {}
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._most_deadlines = _LEAST_DEADLINES
        self._numbers = itertools.count()
        self._last_keys: tuple[str, ...] = ()

    def set(self, key: str, value: bytes) -> None:
        """Stores a value and answers those who waited for it."""
        self._values[key] = value
        for waiter in list(self._waiting.get(key, ())):
            self._settle(waiter)

    def add(self, key: str, value: bytes) -> bytes | None:
        """Stores a value if the key is new; otherwise returns the value that is there."""
        existing = self._values.get(key)
        if existing is None:
            self.set(key, value)
        return existing

    def append(self, prefix: str, value: bytes) -> int:
        """Stores a value at the prefix and the next number, from 0, and returns the number."""
        number = self._lengths.get(prefix, 0)
        self._lengths[prefix] = number + 1
        self.set(f"{prefix}{number}", value)
        return number

    def wait(
        self,
        keys: Sequence[str],
        stop_key: str,
        deadline: float,
        now: float,
        answer: Callable[[Found], None],
    ) -> Waiter:
        """Answers when all keys or the stop key exist, at the deadline with what there is."""
        waiter = Waiter(self._kept_once(tuple(keys)), stop_key, answer)
        self._settle(waiter)
        if not waiter.done and deadline <= now:
            self._finish(waiter)
        if not waiter.done:
            self._note_deadline(deadline, waiter)
        return waiter

    def _kept_once(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Return equal keys; ranks that start together all wait for the same."""
        if keys != self._last_keys:
            self._last_keys = keys
        return self._last_keys

    def _note_deadline(self, deadline: float, waiter: Waiter) -> None:
        """Note when a wait ends at the latest.

        Most waits are answered long before, and would stay noted until then. So once in a while,
        when there are twice as many as were left the last time, those are taken out.
        """
        heapq.heappush(self._deadlines, (deadline, next(self._numbers), waiter))
        if len(self._deadlines) > self._most_deadlines:
            self._deadlines = [each for each in self._deadlines if not each[2].done]
            heapq.heapify(self._deadlines)
            self._most_deadlines = max(_LEAST_DEADLINES, 2 * len(self._deadlines))

    def cancel(self, waiter: Waiter) -> None:
        """Forgets a waiter without an answer. Idempotent."""
        waiter.done = True
        self._forget(waiter)

    def delete(self, key: str) -> None:
        """Deletes one key, if it exists; a list goes on counting."""
        self._values.pop(key, None)

    def delete_prefix(self, prefix: str) -> int:
        """Deletes all keys that start with ``prefix`` and returns how many these were."""
        doomed = [key for key in self._values if key.startswith(prefix)]
        for key in doomed:
            del self._values[key]
        return len(doomed)

    def next_deadline(self) -> float | None:
        """When the next waiter's time is over."""
        while self._deadlines and self._deadlines[0][2].done:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expire(self, now: float) -> None:
        """Answers those whose time is over."""
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            self._finish(heapq.heappop(self._deadlines)[2])

    def _settle(self, waiter: Waiter) -> None:
        """Answers the waiter if it can be, or else notes it at the last key that it misses.

        From the end, because ranks come in about the order of their numbers: who waits for the last
        one is not woken by all before it.
        """
        num_left = self._num_left(waiter.keys, waiter.num_left)
        if num_left == 0:  # but a key that was seen may have been deleted since
            num_left = self._num_left(waiter.keys, len(waiter.keys))
        if num_left == 0 or waiter.stop_key in self._values:
            self._finish(waiter)
            return
        self._forget(waiter)
        waiter.num_left, waiter.watched = num_left, waiter.keys[num_left - 1]
        for key in self._noted_at(waiter):
            self._waiting.setdefault(key, {})[waiter] = None

    def _num_left(self, keys: Sequence[str], end: int) -> int:
        """Return how many keys are left when those that exist are taken away from the end."""
        while end > 0 and keys[end - 1] in self._values:
            end -= 1
        return end

    def _finish(self, waiter: Waiter) -> None:
        waiter.done = True
        self._forget(waiter)
        wanted = (*waiter.keys, waiter.stop_key)
        waiter.answer({key: self._values[key] for key in wanted if key in self._values})

    def _forget(self, waiter: Waiter) -> None:
        for key in self._noted_at(waiter):
            waiters = self._waiting.get(key, {})
            waiters.pop(waiter, None)
            if not waiters:
                self._waiting.pop(key, None)

    def _noted_at(self, waiter: Waiter) -> tuple[str, ...]:
        return tuple(filter(None, (waiter.watched, waiter.stop_key)))
