"""Spreads work over processes, and ends with an error if one of them dies."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, TypeVar

from landscapes.errors import LandscapesError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Yield ``work(item)`` of each item, in their order, computed on ``workers`` processes.

    One worker is this process. An error of ``work`` is raised here, after which no further item is
    begun. Raise LandscapesError if a process dies, as of too little memory.
    """
    if workers == 1:
        yield from map(work, items)
        return
    # Not forked: the caller may run threads of PyTorch or Horovod.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    try:
        yield from pool.map(work, items)
    except BrokenProcessPool:
        raise LandscapesError(
            f"One of {workers} worker processes was killed. If memory was short, give fewer "
            "--workers."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
