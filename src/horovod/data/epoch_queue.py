"""A queue from one thread to another, epoch by epoch; an epoch may be abandoned in its middle."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class EpochQueue(Generic[T]):
    """Items of numbered epochs, in the order in which they were put.

    One thread puts, epoch after epoch; another one gets. Whoever waits is woken by the other side,
    and by :meth:`close`.

    Args:
        capacity: how many items may wait, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._changed = threading.Condition()
        self._items: deque[tuple[int, T]] = deque()
        # Earlier epochs are over, for the thread that gets.
        self._first = 0
        self._closed = False

    def put(self, epoch: int, item: T) -> bool:
        """Waits for room; False if the epoch is over, and the item was dropped."""
        with self._changed:
            self._changed.wait_for(lambda: self._over(epoch) or len(self._items) < self._capacity)
            if self._over(epoch):
                return False
            self._items.append((epoch, item))
            self._changed.notify_all()
            return True

    def get(self, epoch: int) -> T:
        """Waits for the next item of an epoch, before which all others must be over.

        Raises:
            RuntimeError: the epoch is over, because a later one was begun, or the queue was closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._over(epoch) or len(self._items) > 0)
            if self._over(epoch):
                raise RuntimeError(
                    "the loader was closed"
                    if self._closed
                    else "another iteration over the loader has begun"
                )
            _, item = self._items.popleft()
            self._changed.notify_all()
            return item

    def begin(self, epoch: int) -> None:
        """Ends all epochs before this one; what is left of them is dropped."""
        with self._changed:
            self._first = max(self._first, epoch)
            self._items = deque(entry for entry in self._items if entry[0] >= self._first)
            self._changed.notify_all()

    def wait_for_end_of(self, epoch: int) -> None:
        """Waits until the thread that gets has done with an epoch."""
        with self._changed:
            self._changed.wait_for(lambda: self._over(epoch))

    def close(self) -> None:
        """Ends all epochs, those to come, too."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def _over(self, epoch: int) -> bool:
        return self._closed or epoch < self._first
