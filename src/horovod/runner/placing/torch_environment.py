"""The variables with which ``torch.distributed.init_process_group`` finds the ranks of a job.

All six are there, or none: libraries such as accelerate take a part of them for the whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._settings.foreign_launchers import find_foreign_launcher
from horovod._settings.torch_variables import (
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    MASTER_ADDR,
    MASTER_PORT,
    RANK,
    WORLD_SIZE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horovod.runner.protocol.agent_job import AgentJob

LOOPBACK = "127.0.0.1"
_PLACES = {
    RANK: "HOROVOD_RANK",
    WORLD_SIZE: "HOROVOD_SIZE",
    LOCAL_RANK: "HOROVOD_LOCAL_RANK",
    LOCAL_WORLD_SIZE: "HOROVOD_LOCAL_SIZE",
}


def rank_variables_of_user(env: Mapping[str, str]) -> list[str]:
    """Return the variables for the place of a rank that the user has set for all ranks alike.

    Those of a rank of another job, in which horovodrun was called, are not among them.
    """
    if env.get(RANK) and env.get(RANK) in _ranks_of_outer_job(env):
        return []
    return [name for name in _PLACES if env.get(name)]


def _ranks_of_outer_job(env: Mapping[str, str]) -> list[str | None]:
    """Return the ranks that the launchers of an outer job gave the caller of horovodrun."""
    found = find_foreign_launcher(env)
    of_foreign = None if found is None or found[0].master is not None else env.get(found[1][0])
    return [env.get("HOROVOD_RANK"), of_foreign]


def without_outer_place(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those that describe a rank of an outer job to PyTorch.

    Args:
        env: in which horovodrun was called; what the user has set there stays.
    """
    is_outer = bool(env.get(RANK)) and not rank_variables_of_user(env)
    dropped = {*_PLACES, MASTER_ADDR, MASTER_PORT} if is_outer else set()
    return {name: value for name, value in env.items() if name not in dropped}


def warn_of_rank_variables(env: Mapping[str, str], say: Callable[[str], object]) -> None:
    """Tell the user that all ranks get the same variables that should differ between them.

    Args:
        env: of all ranks of a job that has several.
        say: prints one line.
    """
    if names := rank_variables_of_user(env):
        shown = ", ".join(f"{name}={env[name]}" for name in names)
        say(
            f"{shown} of this environment is passed to all ranks alike, so "
            "torch.distributed.init_process_group() cannot tell them apart; unset it here, and "
            "horovodrun sets these variables for each rank"
        )


def with_torch_variables(job: AgentJob, address: str, port: int) -> AgentJob:
    """Return the job of a host whose workers have the variables of PyTorch, too.

    Args:
        job: of an agent; variables that the user has set there stay.
        address, port: where rank 0 may listen for all ranks.
    """
    if rank_variables_of_user(job.env):
        return job
    # Those of a job in which horovodrun was called lead to that one.
    of_user = {} if job.env.get(RANK) else job.env
    master = {MASTER_ADDR: address, MASTER_PORT: str(port)}
    told = {name: of_user.get(name) or value for name, value in master.items()}
    workers = tuple(
        replace(worker, env={**worker.env, **_places(worker.env), **told}) for worker in job.workers
    )
    return replace(job, workers=workers)


def _places(env: Mapping[str, str]) -> dict[str, str]:
    return {name: env[ours] for name, ours in _PLACES.items()}
