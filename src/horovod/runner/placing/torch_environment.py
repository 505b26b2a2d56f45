"""The variables with which ``torch.distributed.init_process_group`` finds the ranks of a job.

All six are there, or none: libraries such as accelerate take a part of them for the whole.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING

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


def reserve_port() -> socket.socket:
    """Return a socket that keeps a port free for rank 0 on this host, as long as it is open.

    It is bound to all addresses and never listens, so nothing answers there. The kernel gives such
    a port to nobody who asks for any free one, or connects; but a server that binds this very port
    with SO_REUSEADDR, as the store of PyTorch does, gets it, because nobody listens.

    Raises:
        OSError: no port is left.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("", 0))
    except OSError:
        sock.close()
        raise
    return sock


def rank_variables_of_user(env: Mapping[str, str]) -> list[str]:
    """Return the variables for the place of a rank that the user has set for all ranks alike.

    Those of a rank of another job, in which horovodrun was called, are not among them.
    """
    if env.get(RANK) and env.get(RANK) == env.get("HOROVOD_RANK"):
        return []
    return [name for name in _PLACES if env.get(name)]


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
