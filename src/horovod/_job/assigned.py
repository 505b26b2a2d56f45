"""The place that an executor, say Ray or Spark, has given to the code that it calls."""

from __future__ import annotations

import contextvars
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._job.environment import Assignment
from horovod._settings.config import Config, inherited_environment
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_assigned: contextvars.ContextVar[Assignment | None] = contextvars.ContextVar(
    "horovod.assigned", default=None
)


@contextmanager
def assigned(assignment: Assignment) -> Iterator[None]:
    """Inside the block, ``hvd.init()`` takes part as this worker, whatever the environment says.

    Example:
        >>> with assigned(worker.await_place()):
        ...     train()   # calls hvd.init() as any script does
    """
    token = _assigned.set(assignment)
    try:
        yield
    finally:
        _assigned.reset(token)


def elastic_assignment(job: Assignment | None) -> Assignment | None:
    """Return an executor's assignment of a worker whose place changes; None if there is none.

    Args:
        job: the assignment; None for that of the block of :func:`assigned` around the caller.
    """
    job = job or _assigned.get()
    return job if job is not None and is_elastic(job) else None


def elastic_environment() -> Assignment | None:
    """Return the environment's assignment of a worker whose place changes; None if there is none.

    Raises:
        StartError: a value makes no sense.
    """
    told = Assignment.from_variables(inherited_environment())
    # Of ranks that it knew before, the environment may still tell.
    return replace(told, place=None) if told.elastic and told.store and told.hostname else None


def is_elastic(job: Assignment) -> bool:
    """Whether a worker has to ask the store for its place, again and again."""
    return job.elastic and job.place is None


def settings_of(job: Assignment | None) -> Config | None:
    """The settings of a rank that an executor tells its place.

    Args:
        job: the assignment; None for that of the block of :func:`assigned` around the caller.

    Returns:
        The settings of the environment with this place; None if nobody was told one.

    Raises:
        StartError: a setting makes no sense.
        UsageError: the assignment holds no place, or no store although there are other ranks.
    """
    job = job or _assigned.get()
    if job is None or is_elastic(job):
        return None
    if job.place is None:
        raise UsageError(
            f"worker {job.identity or 'without identity'} was told no place: let it join the job "
            "and await one, with horovod._job.worker.join_as(assignment).await_place()"
        )
    if job.place.size > 1 and job.store is None:
        raise UsageError(f"{job.place} was not told where the store of its job is")
    return Config.from_env(told=job.variables())
