"""A job whose ranks are threads of the test process, for several calls one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod import _native
from horovod._settings.config import Config
from horovod.testing.threads import ThreadWorld

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._rank.group import Group

DEADLINE_S = 90.0


class ThreadRanks:
    """Ranks 0 … size-1 of a job that has begun.

    Args:
        size: the number of ranks.
        options: of all engines.
    """

    def __init__(self, size: int, options: _native.EngineOptions | None = None) -> None:
        self.size = size
        configs = [Config(rank=rank, size=size, is_placed=True) for rank in range(size)]
        self._world = ThreadWorld(configs, options or _native.EngineOptions())
        for each in self._world.contexts:
            each.init()
        self.groups: list[Group] = [each.job().group for each in self._world.contexts]
        self.engines = [group.engine for group in self.groups]
        self.failed = False

    def __enter__(self) -> ThreadRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close("the test is over")

    def close(self, reason: str) -> None:
        """Closes all engines, which lets every thread that still waits go on with an error."""
        self._world.close(reason)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls ``function(rank, *args)`` on every rank; returns the results in rank order.

        Raises:
            TimeoutError: the ranks did not end in time.
            BaseException: what the first rank that failed has raised; the others are stopped, and
                ``failed`` says that this job can do nothing more.
        """
        try:
            return self._world.run(lambda rank: function(rank, *args), DEADLINE_S, ranks_stay=True)
        except BaseException:
            self.failed = True
            raise


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

    def allreduce(self, *args: Any) -> _native.Handle:
        """As the engine's."""
        handle = self._engine.allreduce(*args)
        self.names.append(handle.name)
        return handle

    def allreduce_now(self, *args: Any) -> None:
        """As the engine's, which tells no name."""
        *before, call_site, keep = args
        self.allreduce(*before, True, call_site, keep).wait()

    def take(self) -> list[str]:
        """The names since the last call."""
        taken, self.names = self.names, []
        return taken
