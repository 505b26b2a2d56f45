"""Starts the engine of this process with a store that another program lends, such as PyTorch's.

A program may call ``hvd.init()`` and ``torch.distributed.init_process_group("horovod")``, in any
order: the engine of a process is started once for the same rank and size, and whoever uses it is
one of its holders. It ends when the last :class:`Lease` is closed, unless ``hvd.init()`` joined it;
then ``hvd.shutdown()`` ends it. An engine that has failed is ended by ``hvd.shutdown()`` at once,
and is not lent again.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from horovod._job.bootstrap import Bootstrap
from horovod._job.lent_store import LentStore, StoreMeeting, is_loopback_name
from horovod._rank.job_context import Context, current
from horovod._rendezvous.secret import has_given_secret, secret_of
from horovod._settings.config import Config
from horovod.errors import StartError, UsageError

if TYPE_CHECKING:
    from horovod import _native
    from horovod._rank.group import Group
    from horovod._rank.job_context import _Job

__all__ = ["Lease", "LentStore", "start_by_store"]

_rounds: Counter[tuple[int, int]] = Counter()
_lock = threading.Lock()


@dataclass
class Lease:
    """One holder of the engine of this process.

    Attributes:
        context: which ``hvd`` functions work for the job inside of ``with context.use()``.
        config: the settings of this rank, with its place among the hosts.
        group: all ranks of the job.
        is_shared: whether the engine ran before.
    """

    context: Context
    config: Config
    group: Group
    is_shared: bool
    _job: _Job | None

    @property
    def engine(self) -> _native.Engine:
        """The engine, for submitting operations."""
        return self.group.engine

    def close(self, reason: str = "") -> None:
        """Ends the holder, and the engine with the last one. Idempotent.

        Args:
            reason: what the peers are told if the engine ends.
        """
        job, self._job = self._job, None
        if job is not None:
            self.context.give_back(job, reason or "its process group was destroyed")


def start_by_store(store: LentStore, rank: int, size: int, timeout_s: float) -> Lease:
    """Starts the engine of this process, or shares the one that runs; all ranks call it.

    Under ``horovodrun`` the engine joins the launcher's job if rank and size are those of it;
    the store is not used then. Otherwise the ranks meet over the store. Where each rank is (local
    rank and size, hosts) is found out, and stands in ``Lease.config``.

    Args:
        store: the same on all ranks, for example a ``torch.distributed.PrefixStore``.
        rank, size: of this process.
        timeout_s: seconds until all ranks must have come.

    Raises:
        UsageError: the rank is not below the size.
        StartError: a rank did not come in time, a setting is wrong, or rank 0 shares an engine
            that this process does not have.
    """
    if not 0 <= rank < size:
        raise UsageError(f"rank={rank} is not in 0 … {size - 1}, as size={size}")
    told = Config.from_env()
    context = _context_for(told, rank, size)
    if told.elastic or _is_place_of(told, rank, size):
        if told.elastic:
            context.init()
            if (context.config.rank, context.config.size) != (rank, size):
                raise StartError(_elsewhere(context.config, rank, size))
        return _lease(context, None, None)
    if size == 1:
        return _lease(context, _settings(told, 0, 1, timeout_s), None)
    launcher = told.foreign_launcher
    one_host = launcher is not None and launcher.one_host and told.size == size
    is_local = not has_given_secret(told) and (one_host or _is_at_loopback(store))
    lease = _meet(store, context, _settings(told, rank, size, timeout_s), is_local=is_local)
    with _lock:
        _rounds[rank, size] += 1
    return lease


def _meet(store: LentStore, context: Context, config: Config, *, is_local: bool) -> Lease:
    """Share the engine of the context, if all ranks have it, or start a new one."""
    rank, size = config.rank, config.size
    token = _token(context)
    deadline = time.monotonic() + config.start_timeout_s
    # What an earlier round left in the store must not match.
    prefix = f"horovod/{_rounds[rank, size]}"
    meeting = StoreMeeting(store, prefix, rank, size, deadline, token, is_local=is_local)
    if meeting.shared != token:
        raise StartError(_differing(rank, bool(token)))
    if token:
        return _lease(context, None, None)
    context.end("it starts another engine")  # one that has failed
    bootstrap = Bootstrap(config, meeting=meeting)
    try:
        config = bootstrap.attend(config)
        if context is not current():  # one job of a process is shown, not each of its groups
            config = replace(config, holds_store=False)
        return _lease(context, config, bootstrap)
    except BaseException:
        bootstrap.close()
        raise


def _is_at_loopback(store: object) -> bool:
    """Whether a store of PyTorch listens at a loopback address, so that all ranks are here."""
    while (within := getattr(store, "underlying_store", None)) is not None:
        store = within
    return is_loopback_name(str(getattr(store, "host", "")))


def _lease(context: Context, config: Config | None, bootstrap: Bootstrap | None) -> Lease:
    was_there = context.has_job
    job = context.lend(config, bootstrap)
    return Lease(context, job.config, job.group, was_there, job)


def _context_for(told: Config, rank: int, size: int) -> Context:
    """The current context, unless it has another job, or the environment describes another one."""
    context = current()
    if context.has_job:
        running = context.config
        return context if (running.rank, running.size) == (rank, size) else Context()
    is_announced = told.size > 1 and (told.rank, told.size) != (rank, size)
    return Context() if is_announced else context


def _is_place_of(told: Config, rank: int, size: int) -> bool:
    """Whether our launcher has started this process as this rank."""
    return bool(told.rendezvous_addr) and (told.rank, told.size) == (rank, size)


def _settings(told: Config, rank: int, size: int, timeout_s: float) -> Config:
    """The settings of the environment for a job that it does not describe."""
    return replace(
        told,
        rank=rank,
        size=size,
        local_rank=0,
        local_size=1,
        cross_rank=0,
        cross_size=1,
        is_placed=size == 1,
        rendezvous_addr="",
        rendezvous_port=0,
        bootstrap_address=None,
        foreign_launcher=None,
        unserved_launcher="",
        start_timeout_s=timeout_s,
        is_lent=True,
    )


def _token(context: Context) -> str:
    """Name the engine of a context to those that have one of the same job; empty for none."""
    if not context.has_job:
        return ""
    job = context.job()
    if job.group.engine.error():
        return ""
    message = f"engine {context.incarnation}".encode()
    return hmac.new(secret_of(job.config), message, hashlib.sha256).hexdigest()[:32]


def _elsewhere(config: Config, rank: int, size: int) -> str:
    return (
        f"this process is rank {config.rank} of {config.size} of an elastic job, and cannot be "
        f"rank {rank} of {size}: pass the rank and size of hvd after hvd.init()"
    )


def _differing(rank: int, has_engine: bool) -> str:
    here = "runs in" if has_engine else "does not run in"
    return (
        f"an engine of another rank 0 or none is shared: the job of hvd.init() {here} rank {rank}, "
        "which differs from rank 0. Call hvd.init() and hvd.shutdown() on all ranks or on none, "
        "and in the same order with init_process_group"
    )
