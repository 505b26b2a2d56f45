"""The one default engine of this process: what ``hvd.init()`` makes and ``hvd.rank()`` asks.

This is the convenience layer that every adapter re-exports; below it there is no global state.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod import _native
from horovod.config import Config
from horovod.errors import NotInitializedError, UsageError
from horovod.group import Group
from horovod.rendezvous.peers import connect_peers
from horovod.rendezvous.secret import read_secret
from horovod.rendezvous.store import StoreClient

if TYPE_CHECKING:
    from types import TracebackType


@dataclass(frozen=True)
class _Job:
    """An initialised job of this process."""

    config: Config
    group: Group


class _Context:
    """Holds the current job; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._epoch = 0
        self._exit_reason = ""

    def init(self, comm: object, process_sets: object) -> None:
        with self._lock:
            config = Config.from_env() if self._job is None else self._job.config
            _check_scope(comm, process_sets, config.size)
            if self._job is not None:
                return
            if self._epoch == 0:
                self._watch_exit()
            # Also after a failure: a retry must not meet what the failed try left in the store.
            self._epoch += 1
            engine = _start_engine(config, self._epoch)
            self._job = _Job(config, Group(engine, 0, range(config.size)))

    def shutdown(self, reason: str = "") -> None:
        with self._lock:
            job, self._job = self._job, None
        if job is not None:
            job.group.engine.close(reason or "it called hvd.shutdown()")

    def job(self) -> _Job:
        job = self._job
        if job is None:
            raise NotInitializedError("Horovod has not been initialised; call hvd.init() first")
        return job

    def initialized(self) -> bool:
        return self._job is not None

    def _forget_in_child(self) -> None:
        """In the child of a fork: the job is the parent's, whose end the peers must notice."""
        self._lock = threading.Lock()
        job, self._job = self._job, None
        if job is not None:
            job.group.engine.abandon()

    def _watch_exit(self) -> None:
        """Tells the peers why this process ends: its exception, or that it simply ended."""
        os.register_at_fork(after_in_child=self._forget_in_child)
        previous_hook = sys.excepthook

        def note_exception(
            kind: type[BaseException], value: BaseException, traceback: TracebackType | None
        ) -> None:
            self._exit_reason = f"it raised {kind.__name__}: {value}"[:500]
            previous_hook(kind, value, traceback)

        sys.excepthook = note_exception
        atexit.register(lambda: self.shutdown(self._exit_reason or "its process ended"))


def _check_scope(comm: object, process_sets: object, size: int) -> None:
    if isinstance(comm, Iterable):
        ranks = sorted(comm)
        if ranks and ranks != list(range(size)):
            raise UsageError(
                f"init(comm={ranks}) asks for some of the {size} ranks; this version only knows "
                "jobs of all ranks that the launcher started"
            )
    elif comm is not None:
        raise UsageError(
            f"init(comm=…) got a {type(comm).__name__}; MPI communicators are not supported in "
            "this version, start the job with horovodrun and call init() without arguments"
        )
    dynamic = isinstance(process_sets, str) and process_sets.lower() == "dynamic"
    if process_sets and not dynamic:
        raise UsageError(
            "init(process_sets=…): process sets other than the global one are not supported in "
            "this version"
        )


def _start_engine(config: Config, epoch: int) -> _native.Engine:
    if config.size == 1:
        return _native.Engine(0, 1, _options(config, [_label(config)]), None, (), ())
    secret = read_secret(config.secret_file)
    store = StoreClient(
        config.rendezvous_addr, config.rendezvous_port, secret, config.start_timeout_s
    )
    try:
        peers = connect_peers(config, secret, store, _native.LocalPort, epoch)
    finally:
        store.close()
    try:
        return _native.Engine(
            config.rank,
            config.size,
            _options(config, peers.rank_names),
            peers.port,
            peers.local_peers,
            peers.remote_peers,
        )
    except BaseException:
        peers.close()
        raise


def _options(config: Config, rank_names: Sequence[str]) -> _native.EngineOptions:
    return _native.EngineOptions(
        fusion_threshold=config.fusion_threshold,
        cache_capacity=config.cache_capacity,
        stall_check_time_s=config.stall_check_time_s,
        stall_shutdown_time_s=config.stall_shutdown_time_s,
        rank_names=rank_names,
    )


def _label(config: Config) -> str:
    return config.hostname


_context = _Context()


def init(
    comm: Sequence[int] | None = None, process_sets: Sequence[object] | str | None = None
) -> None:
    """Joins the job that the launcher describes in the environment; a job of one rank without it.

    Does nothing while Horovod is initialised. After :func:`shutdown` it can be called again.

    Args:
        comm: the ranks of the job; None, an empty list, or all of them.
        process_sets: None, an empty list, or "dynamic"; this version has no other sets.

    Raises:
        StartError: a setting is wrong, or a rank did not appear within the start timeout.
        UsageError: ``comm`` or ``process_sets`` asks for what this version does not have.
    """
    _context.init(comm, process_sets)


def shutdown() -> None:
    """Leaves the job: pending operations fail here, and later ones fail on the other ranks."""
    _context.shutdown()


def is_initialized() -> bool:
    """Whether :func:`init` was called and :func:`shutdown` was not."""
    return _context.initialized()


def global_group() -> Group:
    """The process set of all ranks.

    Raises:
        NotInitializedError: Horovod has not been initialised.
    """
    return _context.job().group


def rank() -> int:
    """This process among all processes of the job, from 0. Raises NotInitializedError."""
    return _context.job().config.rank


def size() -> int:
    """The number of processes of the job. Raises NotInitializedError."""
    return _context.job().config.size


def local_rank() -> int:
    """This process among those of its host, from 0. Raises NotInitializedError."""
    return _context.job().config.local_rank


def local_size() -> int:
    """The number of processes on this host. Raises NotInitializedError."""
    return _context.job().config.local_size


def cross_rank() -> int:
    """This host among those with a process of this local rank. Raises NotInitializedError."""
    return _context.job().config.cross_rank


def cross_size() -> int:
    """The number of hosts that have a process of this local rank. Raises NotInitializedError."""
    return _context.job().config.cross_size


def is_homogeneous() -> bool:
    """Whether every host runs the same number of processes. Raises NotInitializedError."""
    config = _context.job().config
    return config.local_size * config.cross_size == config.size
