"""Leads a job whose workers are started by tests, in place of the elastic launcher."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from horovod._job.membership import assign_places

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._job import Worker
    from horovod._job.job import Job
    from horovod._job.membership import Membership


def await_workers(job: Job, condition: Callable[[Job], bool], timeout_s: float) -> None:
    """Read events until something holds, for example ``len(job.available) == 4``."""
    deadline = time.monotonic() + timeout_s
    while not condition(job):
        event = job.next_event(max(0.0, deadline - time.monotonic()))
        assert event is not None, f"after {timeout_s:g} s the workers are {sorted(job.available)}"


def begin_generation(job: Job, workers: Sequence[Worker] | None = None) -> Membership:
    """Publish the places of workers; of all that are available if None."""
    chosen = list(job.available.values()) if workers is None else workers
    membership = assign_places(job.membership, chosen, job.next_generation)
    job.publish(membership)
    return membership
