"""Values of each context, for modules that would have a global one."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

from horovod._rank.job_context import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._rank.job_context import Context

T = TypeVar("T")


class PerContext(Generic[T]):
    """A value of each context, for modules that would have a global one.

    Args:
        make: makes the value of a context when it is asked for first.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._values: weakref.WeakKeyDictionary[Context, T] = weakref.WeakKeyDictionary()

    def get(self) -> T:
        """The value of the current context."""
        context = current()
        with self._lock:
            if context not in self._values:
                self._values[context] = self._make()
            return self._values[context]
