"""The job of the calling thread: what ``hvd.init()`` joins and ``hvd.rank()`` asks.

This is the convenience layer that every adapter re-exports. Below it and the contexts of
:mod:`horovod._rank.job_context`, there is no global state.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from horovod._base import files
from horovod._job.assigned import elastic_assignment, settings_of
from horovod._rank.job_context import (
    Context,
    count_step,
    current,
    current_config,
    current_job,
    inherited,
    process,
    step,
)
from horovod._rank.per_context import PerContext
from horovod._rank.running import JobListener
from horovod._settings.config import Config
from horovod.errors import StartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod._job import Assignment
    from horovod._job.elastic_worker import ElasticWorker
    from horovod._rank.group import Group
    from horovod._rank.init_arguments import DeclaredSet

__all__ = [
    "Context",
    "JobListener",
    "PerContext",
    "count_step",
    "cross_rank",
    "cross_size",
    "current",
    "elastic_worker",
    "generation",
    "global_group",
    "inherited",
    "init",
    "is_homogeneous",
    "is_initialized",
    "listen",
    "local_rank",
    "local_size",
    "max_size",
    "min_size",
    "mpi_threads_supported",
    "process",
    "rank",
    "settings",
    "shutdown",
    "size",
    "start_timeline",
    "step",
    "stop_timeline",
    "uses_mpi",
]


def init(
    comm: Sequence[int] | None = None,
    process_sets: Iterable[DeclaredSet] | str | None = None,
    job: Assignment | None = None,
) -> None:
    """Joins the job that the launcher describes in the environment; a job of one rank without it.

    Does nothing while Horovod is initialized. After :func:`shutdown` it can be called again.

    A worker that comes while the others of an elastic job train is not held up: until its first
    collective, or the function that ``hvd.elastic.run`` wraps, it has a provisional place, as one
    more rank, and the others train on without it.

    Args:
        comm: the ranks of the job; None, an empty list, or all of them.
        process_sets: the ``hvd.ProcessSet`` objects to register, the same on all ranks; or
            "dynamic", to add and remove process sets later; or None. While Horovod is initialized
            the sets are only looked up among the registered ones.
        job: what a worker was assigned that needs no environment for it; None for the assignment
            around the caller (:func:`horovod._job.assigned.assigned`), or the environment.

    Raises:
        StartError: a setting is wrong, or a rank did not appear within the start timeout.
        UsageError: ``comm`` asks for what this version does not have; two process sets are equal,
            or one does not fit into the job.
        KeyError: Horovod is initialized, and has no process set of these ranks.
        HorovodInternalError: the ranks named different process sets.

    Example:
        >>> even, odd = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])
        >>> hvd.init(process_sets=[even, odd])   # with 4 ranks
    """
    try:
        context = current()
        config = None if context.has_job else settings_of(job)
        context.init(comm, process_sets, config, elastic_assignment(job))
    except (StartError, UsageError) as error:
        # The sentence says all; where in here it was found would only push it off the screen.
        raise error.with_traceback(None)  # noqa: B904


def shutdown() -> None:
    """Leaves the job: pending operations fail here, and later ones fail on the other ranks.

    What all ranks have begun is completed before, for up to 2 seconds (30 if a GPU works on it).
    """
    current().shutdown()


def is_initialized() -> bool:
    """Whether :func:`init` was called and :func:`shutdown` was not."""
    return current().has_job


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Records what all ranks do, from now on, into one file in Chrome's trace format.

    Rank 0 writes; on other ranks the call does nothing, so all may call it. Needs no
    ``HOROVOD_TIMELINE``. A timeline that is being written to another file ends before; one of the
    same file goes on. Open the file with https://ui.perfetto.dev or chrome://tracing.

    Args:
        file_path: on the host of rank 0; what it held is gone.
        mark_cycles: whether each answer of the coordinator is marked as ``CYCLE_START``.

    Raises:
        NotInitializedError: Horovod has not been initialized.
        UsageError: the file cannot be written.
    """
    if rank() == 0:
        files.refuse_link_of_others(file_path)
    current_job().running.engine.start_timeline(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline; all records are in the file when it returns. Nothing if there is none.

    Raises:
        NotInitializedError: Horovod has not been initialized.
    """
    current_job().running.engine.stop_timeline()


def listen(listener: JobListener) -> None:
    """Tells a listener of the jobs that this process takes part in, and of all later ones.

    It is called from any thread, but from one at a time.
    """
    process.listen(listener)


def global_group() -> Group:
    """The process set of all ranks.

    Raises:
        NotInitializedError: Horovod has not been initialized.
    """
    return current_job().group


def uses_mpi() -> bool:
    """Whether MPI moves the data of the job; False while Horovod is not initialized."""
    return settings().cpu_operations == "mpi"


def mpi_threads_supported() -> bool:
    """Whether the program may call MPI from any thread while Horovod does.

    False if MPI does not move the data of the job: Horovod has not initialized it then.

    Raises:
        NotInitializedError: Horovod has not been initialized.
    """
    if current_config().cpu_operations != "mpi":
        return False
    return process.mpi.all_threads


def settings() -> Config:
    """Return the settings of the job; the defaults while Horovod is not initialized."""
    context = current()
    return context.config if context.has_job else Config()


def rank() -> int:
    """This process among all processes of the job, from 0. Raises NotInitializedError."""
    return current_config().rank


def size() -> int:
    """The number of processes of the job. Raises NotInitializedError."""
    return current_config().size


def local_rank() -> int:
    """This process among those of its host, from 0. Raises NotInitializedError."""
    return current_config().local_rank


def local_size() -> int:
    """The number of processes on this host. Raises NotInitializedError."""
    return current_config().local_size


def cross_rank() -> int:
    """This host among those with a process of this local rank. Raises NotInitializedError."""
    return current_config().cross_rank


def cross_size() -> int:
    """The number of hosts that have a process of this local rank. Raises NotInitializedError."""
    return current_config().cross_size


def min_size() -> int:
    """The fewest processes that the job goes on with. Raises NotInitializedError.

    Returns:
        The size, unless training is elastic.
    """
    worker = elastic_worker()
    return current_config().size if worker is None else worker.told.min_size


def max_size() -> int | None:
    """The most processes that the job may ever have. Raises NotInitializedError.

    Returns:
        The size, unless training is elastic; None if there is no limit.
    """
    worker = elastic_worker()
    return current_config().size if worker is None else worker.told.max_size


def generation() -> int:
    """Return how often the job's members changed, from 0. Raises NotInitializedError.

    All ranks have the same number; it does not count what happened to this process alone.
    """
    return current_config().generation


def elastic_worker() -> ElasticWorker | None:
    """Return this process's membership in its elastic job; None if the job cannot change."""
    return current().elastic


def is_homogeneous() -> bool:
    """Whether every host runs the same number of processes. Raises NotInitializedError."""
    config = current_config()
    return config.local_size * config.cross_size == config.size
