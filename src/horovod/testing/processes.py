"""Ranks that are processes, with the connections of a real job."""

from __future__ import annotations

import importlib.machinery
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from horovod._job.environment import Assignment, without_job
from horovod._job.job import open_job
from horovod._job.place import Place
from horovod._job.python_path import with_horovod_on_path
from horovod._settings.config import inherited_environment
from horovod.errors import PeerLostError, RankFailedError, UsageError
from horovod.testing.outcomes import Failure, raise_first
from horovod.testing.rank_process import CALL_FILE, Outcome, outcome_file, stacks_file
from horovod.testing.threads import STOP_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from horovod._settings.config import Config

# After its deadline a rank ends itself, with its stacks; so much later it is killed.
_OVERTIME_S = 5.0


def run_processes(
    configs: Sequence[Config],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    timeout_s: float,
) -> list[Any]:
    """Calls ``function(*args)`` in a process for each rank; as :func:`horovod.testing.run_ranks`.

    Args:
        configs: the place of each rank.
        function, args: the call.
        timeout_s: until all ranks must have ended.
    """
    with tempfile.TemporaryDirectory(prefix="hvd-ranks-") as name, open_job() as job:
        folder = Path(name)
        (folder / CALL_FILE).write_bytes(_packed(function, args, timeout_s))
        environ = with_horovod_on_path(without_job(inherited_environment()))
        environ |= job.told().variables()
        with _started(configs, folder, environ) as ranks:
            late = _await(ranks, timeout_s)
            failures = [rank.failure for rank in ranks if rank.failure is not None]
            # Some may have seen a rank end whose time was over before their own time was.
            if any(rank.timed_out() for rank in late):
                failures = [
                    failure for failure in failures if not isinstance(failure.error, PeerLostError)
                ]
        if failures:
            raise_first(failures, [f"rank {rank.rank}" for rank in late])
        if late:
            stacks = "\n".join(f"rank {rank.rank} is here:\n{rank.stacks()}" for rank in late)
            raise TimeoutError(f"ranks did not end within {timeout_s:g} s:\n{stacks}")
        return [rank.result for rank in ranks]


class _Rank:
    """The process of a rank."""

    def __init__(self, config: Config, folder: Path, environ: dict[str, str]) -> None:
        self.rank = config.rank
        self.result: Any = None
        self.failure: Failure | None = None
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "horovod.testing.rank_process", str(folder)],
            env={**environ, **_variables(config)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that what it starts can be killed with it
        )
        self.descriptor = os.pidfd_open(self._process.pid)

    def ended(self) -> None:
        """Reads what became of the rank, whose process has ended."""
        code = self._process.wait()
        file = self._folder / outcome_file(self.rank)
        if not file.exists():
            if code == 0:
                text = f"rank {self.rank} ended with code 0, but before its function returned"
            elif code > 0:
                text = f"rank {self.rank} ended with code {code}, but without an exception"
            else:
                text = f"rank {self.rank} was killed by {signal.Signals(-code).name}"
            error = RankFailedError(
                text, rank=self.rank, exit_code=code if code >= 0 else 128 - code
            )
            self.failure = Failure(self.rank, error, time.monotonic())
            return
        outcome = Outcome(*pickle.loads(file.read_bytes()))
        try:
            value = cloudpickle.loads(outcome.value)
        except Exception as error:  # whatever the class of the value may raise
            what = "error" if outcome.traceback else "result"
            value = RankFailedError(
                f"the {what} of rank {self.rank} cannot be read here: "
                f"{type(error).__name__}: {error}\n{outcome.traceback}",
                rank=self.rank,
                traceback=outcome.traceback,
            )
            self.failure = Failure(self.rank, value, outcome.at_s, outcome.traceback)
            return
        if outcome.traceback:
            self.failure = Failure(self.rank, value, outcome.at_s, outcome.traceback)
        else:
            self.result = value

    def timed_out(self) -> bool:
        """Whether its process, which has ended, has ended itself after its time was over."""
        if (self._folder / outcome_file(self.rank)).exists():
            return False
        stacks = self._folder / stacks_file(self.rank)
        return stacks.exists() and stacks.stat().st_size > 0

    def stacks(self) -> str:
        """Return the position of the rank when its time was over."""
        with suppress(OSError):
            return (self._folder / stacks_file(self.rank)).read_text(errors="replace")
        return "(it has not said where)"

    def end(self) -> None:
        """Kills what is left of it. Idempotent."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self.descriptor)


@contextmanager
def _started(
    configs: Sequence[Config], folder: Path, environ: dict[str, str]
) -> Iterator[list[_Rank]]:
    ranks: list[_Rank] = []
    try:
        for config in configs:
            ranks.append(_Rank(config, folder, environ))
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def _await(ranks: Sequence[_Rank], timeout_s: float) -> list[_Rank]:
    """Waits for all ranks, but only for a while after one has failed; returns those still busy."""
    deadline_s = time.monotonic() + timeout_s + _OVERTIME_S
    late = []
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.descriptor, selectors.EVENT_READ, rank)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline_s - time.monotonic()))
            if not ready:
                late += [key.data for key in selector.get_map().values()]
                break
            for key, _ in ready:
                selector.unregister(key.fd)
                rank = key.data
                if rank.timed_out():
                    late.append(rank)
                    continue
                rank.ended()
                if rank.failure is not None:
                    deadline_s = min(deadline_s, time.monotonic() + STOP_S)
    return late


def _variables(config: Config) -> dict[str, str]:
    place = Place(**{field.name: getattr(config, field.name) for field in fields(Place)})
    return Assignment(place=place, hostname=config.hostname).variables()


def _packed(function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> bytes:
    """The call; modules that a new process could not import travel with it."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    by_value = module is not None and not _is_importable(module)
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return pickle.dumps((sys.path, timeout_s, cloudpickle.dumps((function, args))))
    except Exception as error:  # whatever the user's __reduce__ may raise
        raise UsageError(
            "run_ranks(…, processes=True): the function or its arguments cannot be sent to the "
            f"ranks: {type(error).__name__}: {error}; create such objects inside the function"
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _is_importable(module: ModuleType) -> bool:
    """Whether a new process with the same path would find this very module by its name."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None:
        return module.__name__ != "__main__"
    path: Sequence[str] | None = sys.path
    found = None
    parts = module.__name__.split(".")
    for count in range(1, len(parts) + 1):
        found = importlib.machinery.PathFinder.find_spec(".".join(parts[:count]), path)
        if found is None:
            return False
        path = found.submodule_search_locations
    return found is not None and found.origin == file
