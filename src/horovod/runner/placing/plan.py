"""Plans the job of each host's agent. Pure: settings and addresses in, jobs out."""

from __future__ import annotations

import itertools
from dataclasses import field, replace
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod._job.environment import Assignment, StoreAddress, without_job
from horovod._job.membership import Membership, Worker, assign_places
from horovod._job.place import Place
from horovod.runner.protocol.agent_job import (
    DEFAULT_GRACE_S,
    AgentJob,
    WorkerJob,
    store_variables,
)
from horovod.runner.system.environment import without_own

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from horovod.runner.placing.hosts import Slot

LOOPBACK_INTERFACE = "lo"
INTERFACE_NAMES = ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class JobSettings:
    """Program to run, and the settings to run it with.

    Attributes:
        command: the program and its arguments.
        cwd: the working directory of all ranks.
        environ: the launcher's environment, which the ranks inherit.
        variables: what the tuning flags set; stronger than ``environ``.
        network_interfaces: names given by the user; empty means loopback.
        grace_s: between a signal that stops the job and SIGKILL.
        stdin_rank: the rank that reads what is the launcher's stdin; None for none.
    """

    command: tuple[str, ...]
    cwd: str
    environ: Mapping[str, str] = field(repr=False)
    variables: Mapping[str, str] = field(default_factory=dict)
    network_interfaces: tuple[str, ...] = ()
    grace_s: float = DEFAULT_GRACE_S
    stdin_rank: int | None = None


def make_plan(
    slots: Sequence[Slot],
    settings: JobSettings,
    store: StoreAddress,
    launcher_pid: int = 0,
    remote: Collection[str] = (),
    *,
    several_hosts: bool = False,
) -> list[AgentJob]:
    """Computes the job of each host.

    Args:
        slots: where each rank runs; the ranks of a host are neighbors.
        settings: what to run.
        store: where the ranks find each other.
        launcher_pid: see :class:`AgentJob`.
        remote: the hosts that are other machines; they do not get what only holds on this one.
        several_hosts: whether there are further hosts, of which this plan says nothing.

    Returns:
        One job per host, in the order of the hosts.
    """
    crosses = bool(remote) or several_hosts
    here = agent_job(settings, store, launcher_pid, crosses=crosses)
    there = agent_job(settings, store, crosses=crosses)
    return [
        replace(
            there if hostname in remote else here,
            hostname=hostname,
            workers=tuple(_worker(slot, settings.command) for slot in group),
            user=group[0].user,
        )
        for hostname, group in _by_host(slots)
    ]


def agent_job(
    settings: JobSettings, store: StoreAddress, launcher_pid: int = 0, *, crosses: bool
) -> AgentJob:
    """Return what the agents of all hosts have in common.

    Args:
        settings, store: see :func:`make_plan`.
        launcher_pid: see :class:`AgentJob`; 0 for other machines, which do not get what only holds
            on this one.
        crosses: whether there are several hosts.
    """
    if launcher_pid == 0:
        settings = replace(settings, environ=without_own(settings.environ))
    env = common_environment(settings, store)
    if crosses:  # each agent finds out which interface of its host leads to the others
        chosen = "NCCL_SOCKET_IFNAME" in {**settings.environ, **settings.variables}
        for name in ("HOROVOD_GLOO_IFACE",) if chosen else INTERFACE_NAMES:
            del env[name]
    return AgentJob(
        hostname="",
        cwd=settings.cwd,
        env=env,
        workers=(),
        secret=store.secret,
        launcher_pid=launcher_pid,
        network_interfaces=settings.network_interfaces,
        grace_s=settings.grace_s,
    )


def _worker(slot: Slot, command: tuple[str, ...]) -> WorkerJob:
    # In a job whose workers are fixed, rank and identity are the same number.
    return WorkerJob(slot.rank, slot.rank, rank_environment(slot), command)


def _by_host(slots: Sequence[Slot]) -> list[tuple[str, list[Slot]]]:
    groups = itertools.groupby(slots, key=lambda slot: slot.hostname)
    return [(hostname, list(group)) for hostname, group in groups]


def common_environment(settings: JobSettings, store: StoreAddress) -> dict[str, str]:
    """The variables that all ranks of a job on one machine share.

    The names with GLOO in them are what scripts for earlier versions look at.
    """
    interfaces = settings.network_interfaces
    inherited = {
        # A user who chose an interface for NCCL knows better than the default.
        "NCCL_SOCKET_IFNAME": LOOPBACK_INTERFACE,
        **without_job(settings.environ),
        **settings.variables,
    }
    if interfaces:
        inherited["NCCL_SOCKET_IFNAME"] = ",".join(interfaces)
    return {
        **inherited,
        "PYTHONUNBUFFERED": "1",
        **store_variables(store.address, store.port),
        "HOROVOD_CONTROLLER": "gloo",
        # With mpi the ranks tell that mpirun has to start them.
        "HOROVOD_CPU_OPERATIONS": inherited.get("HOROVOD_CPU_OPERATIONS") or "gloo",
        "HOROVOD_GLOO_IFACE": interfaces[0] if interfaces else LOOPBACK_INTERFACE,
    }


def membership_of(slots: Sequence[Slot]) -> Membership:
    """The only generation of a job whose members do not change."""
    workers = [
        Worker(f"{slot.hostname}-{slot.local_rank}", slot.hostname, slot.local_rank)
        for slot in slots
    ]
    return assign_places(None, workers, 0)


def interface_environment(names: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """The variables that name the interfaces of one host, in a job of several.

    Args:
        names: of the interfaces that lead to the other hosts, the best first.
        env: of the job; a choice for NCCL that the user made there stays.
    """
    if not names:
        return {}
    return {
        "HOROVOD_GLOO_IFACE": names[0],
        "NCCL_SOCKET_IFNAME": env.get("NCCL_SOCKET_IFNAME", ",".join(names)),
    }


def rank_environment(slot: Slot) -> dict[str, str]:
    """The variables that tell a rank its place in the job."""
    place = Place(
        rank=slot.rank,
        size=slot.size,
        local_rank=slot.local_rank,
        local_size=slot.local_size,
        cross_rank=slot.cross_rank,
        cross_size=slot.cross_size,
    )
    return Assignment(place=place, hostname=slot.hostname).variables()
