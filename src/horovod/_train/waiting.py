"""Waiting for several operations at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod.errors import HorovodInternalError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horovod._native import Handle


def wait_for_all(handles: Iterable[Handle]) -> None:
    """Waits until every operation has ended; raises the first failure only then.

    So no operation is still in flight when the caller sees the error, and names can be used again.

    Raises:
        HorovodInternalError: at least one operation failed.
    """
    first: HorovodInternalError | None = None
    for handle in handles:
        try:
            handle.wait()
        except HorovodInternalError as error:
            first = first or error
    if first is not None:
        raise first
