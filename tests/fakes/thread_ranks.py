"""A job whose ranks are threads of the test process, over the engine's memory transport."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from horovod import _native, context
from horovod.errors import HorovodInternalError
from horovod.group import Group

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 30.0

_of_thread = threading.local()


def _group_of_thread() -> Group:
    group: Group = _of_thread.group
    return group


class ThreadRanks:
    """Ranks 0 … size-1; while it is open, ``context.global_group()`` answers each thread its own.

    Args:
        size: the number of ranks.
        options: of all engines.
    """

    def __init__(self, size: int, options: _native.EngineOptions | None = None) -> None:
        self.size = size
        self.engines = _native.make_world(size, options or _native.EngineOptions())
        self.groups = [Group(engine, 0, range(size)) for engine in self.engines]
        self.failed = False

    def __enter__(self) -> ThreadRanks:
        self._saved = (context.global_group, context.is_initialized)
        context.global_group = _group_of_thread
        context.is_initialized = lambda: hasattr(_of_thread, "group")
        return self

    def __exit__(self, *_: object) -> None:
        context.global_group, context.is_initialized = self._saved
        self.close("the test is over")

    def close(self, reason: str) -> None:
        """Closes all engines, which lets every thread that still waits go on with an error.

        Side by side, as processes do: NCCL waits a second for those that stay behind.
        """
        closing = [threading.Thread(target=engine.close, args=(reason,)) for engine in self.engines]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls ``function(rank, *args)`` on every rank; returns the results in rank order.

        Raises:
            AssertionError: the ranks did not end in time.
            BaseException: what the first rank that failed has raised; the others are stopped, and
                ``failed`` says that this job can do nothing more.
        """
        results: list[Any] = [None] * self.size
        failures: list[BaseException] = []

        def body(rank: int) -> None:
            _of_thread.group = self.groups[rank]
            try:
                results[rank] = function(rank, *args)
            except BaseException as error:
                failures.append(error)
                self.engines[rank].close(f"its test failed: {error}")
            finally:
                del _of_thread.group

        threads = [
            threading.Thread(target=body, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        deadline_s = time.monotonic() + DEADLINE_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        stuck = [thread.name for thread in threads if thread.is_alive()]
        self.failed = bool(failures or stuck)
        if stuck:
            self.close("the test ran out of time")
        # A rank that fails takes the others along; its own error is the interesting one.
        for error in sorted(failures, key=lambda e: isinstance(e, HorovodInternalError)):
            raise error
        assert not stuck, f"{', '.join(stuck)} did not end within {DEADLINE_S} s"
        return results


def run_ranks(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Runs ``function(rank, *args)`` in a fresh job of ``size`` ranks."""
    with ThreadRanks(size) as ranks:
        return ranks.run(function, *args)


class Sent:
    """The operations that a rank submits from now on, by their names on the wire.

    Args:
        group: of the rank.
    """

    def __init__(self, group: Group) -> None:
        self.names: list[str] = []
        self._engine = group.engine
        group._engine = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, *args: Any, **options: Any) -> _native.Handle:
        """As the engine's."""
        handle = self._engine.submit(*args, **options)
        self.names.append(handle.name)
        return handle

    def take(self) -> list[str]:
        """The names since the last call."""
        taken, self.names = self.names, []
        return taken
