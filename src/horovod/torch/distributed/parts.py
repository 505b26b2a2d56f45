"""Several operations of the engine that count as one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from horovod._train.waiting import wait_for_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._native import Handle, NativeArray


class Parts:
    """The handles of the parts of an operation, with the methods of a handle.

    Args:
        handles: in the order in which the parts were submitted.
    """

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = handles

    def done(self) -> bool:
        """Return whether all parts have ended."""
        return all(handle.done() for handle in self._handles)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for all parts; return False if the time has passed before.

        Raises:
            HorovodInternalError: a part failed; all have ended.
        """
        if timeout_s is None:
            wait_for_all(self._handles)
            return True
        deadline_s = time.monotonic() + timeout_s
        for handle in self._handles:
            try:
                if not handle.wait(max(0.0, deadline_s - time.monotonic())):
                    return False
            except RuntimeError:
                continue  # raised below, when all have ended
        wait_for_all(self._handles)
        return True

    def results(self) -> list[NativeArray]:
        """Return nothing: the parts write into the memory of the caller."""
        return []

    def received_splits(self) -> list[int]:
        """Return nothing, as :meth:`results`."""
        return []

    def source(self) -> int:
        """Return -1: the parts come from different ranks."""
        return -1
