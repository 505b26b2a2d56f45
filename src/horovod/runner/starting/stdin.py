"""One rank may read what is the launcher's stdin, so that somebody can talk to a debugger in it.

The rank gets the descriptor itself: a terminal stays a terminal, and nobody relays. That the rank
has a session of its own does not matter: the kernel stops only those readers for being in the
background whose own terminal it is.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from horovod.runner.placing.hosts import Slot
    from horovod.runner.protocol.agent_job import AgentJob

_STDIN = 0


def check_stdin_rank(rank: int, slots: Sequence[Slot], remote: Collection[str]) -> None:
    """Makes sure that a rank can have the stdin of this process.

    Args:
        rank: as the user gave it.
        slots: where each rank runs.
        remote: the hosts that are other machines.

    Raises:
        UsageError: there is no such rank, or it runs on another machine.
    """
    if not 0 <= rank < len(slots):
        raise UsageError(f"--stdin-rank {rank}: the ranks of this job are 0 to {len(slots) - 1}")
    hostname = slots[rank].hostname
    if hostname in remote:
        raise UsageError(
            f"--stdin-rank {rank}: rank {rank} runs on {hostname}, and only a rank of this machine "
            f"can have its stdin: start horovodrun on {hostname}, name a rank of this machine, or "
            "use a debugger that listens on a port"
        )


@contextmanager
def own_stdin() -> Iterator[int]:
    """A second descriptor of this process's stdin, closed at the end.

    Raises:
        UsageError: this process has none.
    """
    if sys.stdin is None:  # descriptor 0 was closed at the start, and may be anything by now
        raise UsageError("--stdin-rank: horovodrun has no stdin that the rank could have")
    descriptor = os.dup(_STDIN)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lend_stdin(job: AgentJob, rank: int, descriptor: int) -> AgentJob:
    """The job of a host with the descriptor, if the rank is one of its."""
    if all(worker.rank != rank for worker in job.workers):
        return job
    return replace(job, stdin_rank=rank, stdin=descriptor)
