"""The places of the ranks of a test, also as on several hosts."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._base import log
from horovod._job.membership import Worker, assign_places
from horovod._settings.config import Config, inherited_environment
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

# What says of a process where it is in a job; this one may be a rank itself.
_OF_A_RANK = (
    *("RANK", "SIZE", "HOSTNAME", "GENERATION", "RENDEZVOUS", "GLOO", "SECRET"),
    *("ELASTIC", "WORKER"),
)


def settings_environment() -> dict[str, str]:
    """The variables of Horovod in this process that do not say which rank it is."""
    return {
        name: value
        for name, value in inherited_environment().items()
        if name.startswith("HOROVOD_")
        and not any(word in name.removeprefix("HOROVOD_").split("_") for word in _OF_A_RANK)
    }


def configs_of(num_ranks: int, hosts: Sequence[int] | None) -> list[Config]:
    """The settings of each rank: those of the environment, and its place.

    Args:
        num_ranks: of the job.
        hosts: how many of them are on each host; None for one host.

    Raises:
        UsageError: the numbers make no sense.
        StartError: a variable has a value that makes no sense.
    """
    if num_ranks < 1:
        raise UsageError(f"run_ranks({num_ranks}, …): a job has at least one rank")
    counts = [num_ranks] if hosts is None else list(hosts)
    if sum(counts) != num_ranks or min(counts) < 1:
        raise UsageError(
            f"run_ranks({num_ranks}, …, hosts={counts}): the hosts have {sum(counts)} ranks, and "
            "each needs at least one"
        )
    name = "localhost" if hosts is None else "host-{}"
    workers = [
        Worker(f"{host}/{slot}", name.format(host), slot)
        for host, count in enumerate(counts)
        for slot in range(count)
    ]
    settings = Config.from_env(settings_environment())
    log.follow(settings.log_level, hide_time=settings.log_hide_time)
    return [
        replace(
            settings,
            rank=member.place.rank,
            size=member.place.size,
            local_rank=member.place.local_rank,
            local_size=member.place.local_size,
            cross_rank=member.place.cross_rank,
            cross_size=member.place.cross_size,
            hostname=member.worker.host,
            is_placed=True,
        )
        for member in assign_places(None, workers, 0).members
    ]


def name_of(config: Config) -> str:
    """A rank of this process, for messages of the engine."""
    return f"{config.hostname}:{os.getpid()} (a thread)"
