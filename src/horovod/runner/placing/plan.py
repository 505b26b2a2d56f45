"""What the agent of each host has to do. Pure: settings and addresses in, jobs out.

A job travels to its agent over a pipe, never on a command line, because it holds the secret and
the whole environment.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from horovod.config import Config
from horovod.errors import StartError
from horovod.rendezvous.secret import check_secret
from horovod.runner.system.environment import without_own, without_secrets

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from horovod.runner.placing.hosts import Slot

LOOPBACK_INTERFACE = "lo"
# Slurm (KillWait) and Kubernetes give as much if nothing else was said; neither tells its jobs.
DEFAULT_GRACE_S = Config.grace_s
INTERFACE_NAMES = ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class JobSettings:
    """What the user wants to run, and how.

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


@dataclass(frozen=True)
class StoreAddress:
    """Where the key-value store of the job listens, and the secret that opens it."""

    address: str
    port: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class RankJob:
    """One rank, and the variables that only this rank gets."""

    rank: int
    env: Mapping[str, str]


@dataclass(frozen=True)
class AgentJob:
    """Everything that the agent of one host needs.

    Attributes:
        hostname: as the user wrote it.
        command, cwd: what each rank executes, and where.
        env: the variables that all ranks of the host have in common, complete.
        ranks: the ranks of this host.
        secret: of the job's store; the agent writes it into a private file.
        launcher_pid: the process on the agent's own machine whose death ends the job; 0 if the
            launcher runs elsewhere.
        user: whom to log in as; empty for the one that ssh takes. Only the launcher needs it.
        network_interfaces: of the user's choice, of which the host has one; empty for any.
        grace_s: between a signal that stops the job and SIGKILL.
        stdin_rank: the rank that gets a stdin; -1 for none.
        stdin: the descriptor of it, which the agent has inherited.
    """

    hostname: str
    command: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    ranks: tuple[RankJob, ...]
    secret: bytes = field(repr=False)
    launcher_pid: int = 0
    user: str = ""
    network_interfaces: tuple[str, ...] = ()
    grace_s: float = DEFAULT_GRACE_S
    stdin_rank: int = -1
    stdin: int = -1

    @property
    def remote(self) -> bool:
        """Whether the agent runs on another machine than the launcher."""
        return self.launcher_pid == 0

    def at(self, address: str, port: int) -> AgentJob:
        """The same job with its store at another endpoint."""
        return replace(self, env={**self.env, **_store_variables(address, port)})

    def to_json(self) -> bytes:
        """The job as the agent reads it."""
        document = {
            "hostname": self.hostname,
            "command": list(self.command),
            "cwd": self.cwd,
            "env": dict(self.env),
            "ranks": [{"rank": job.rank, "env": dict(job.env)} for job in self.ranks],
            "secret": self.secret.hex(),
            "launcher_pid": self.launcher_pid,
            "user": self.user,
            "network_interfaces": self.network_interfaces,
            "grace_s": self.grace_s,
            "stdin_rank": self.stdin_rank,
            "stdin": self.stdin,
        }
        return json.dumps(document).encode("ascii")

    @staticmethod
    def from_json(text: bytes) -> AgentJob:
        """Reads what :meth:`to_json` wrote.

        Raises:
            StartError: it is something else. Nothing of it is repeated: it holds the secret.
        """
        try:
            document = json.loads(text)
            job = AgentJob(
                hostname=document["hostname"],
                command=tuple(document["command"]),
                cwd=document["cwd"],
                env=document["env"],
                ranks=tuple(RankJob(job["rank"], job["env"]) for job in document["ranks"]),
                secret=check_secret(bytes.fromhex(document["secret"])),
                launcher_pid=document["launcher_pid"],
                user=document["user"],
                network_interfaces=tuple(document["network_interfaces"]),
                grace_s=float(document["grace_s"]),
                stdin_rank=document["stdin_rank"],
                stdin=document["stdin"],
            )
        except (ValueError, KeyError, TypeError, RecursionError, StartError) as error:
            raise StartError(f"this is not the job of an agent: {type(error).__name__}") from None
        return _checked(job)


def _checked(job: AgentJob) -> AgentJob:
    """Returns the job if its fields have their types, and can be given to a process."""
    texts = [job.hostname, job.cwd, job.user, *job.command, *job.network_interfaces]
    for env in (job.env, *(rank_job.env for rank_job in job.ranks)):
        if not isinstance(env, dict):
            raise StartError("this is not the job of an agent: its variables are no dictionary")
        texts += itertools.chain.from_iterable(env.items())
    numbers = [
        job.launcher_pid,
        job.stdin_rank,
        job.stdin,
        *(rank_job.rank for rank_job in job.ranks),
    ]
    if not job.command or {*map(type, texts)} != {str} or {*map(type, numbers)} != {int}:
        raise StartError("this is not the job of an agent: a field is of a wrong type")
    return job


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
        slots: where each rank runs; the ranks of a host are neighbours.
        settings: what to run.
        store: where the ranks find each other.
        launcher_pid: see :class:`AgentJob`.
        remote: the hosts that are other machines; they do not get what only holds on this one.
        several_hosts: whether there are further hosts, of which this plan says nothing.

    Returns:
        One job per host, in the order of the hosts.
    """
    here = common_environment(settings, store)
    there = common_environment(replace(settings, environ=without_own(settings.environ)), store)
    # Each agent finds out which interface of its host leads to the others.
    if remote or several_hosts:
        chosen = "NCCL_SOCKET_IFNAME" in {**settings.environ, **settings.variables}
        for name in ("HOROVOD_GLOO_IFACE",) if chosen else INTERFACE_NAMES:
            del here[name], there[name]
    return [
        AgentJob(
            hostname=hostname,
            command=settings.command,
            cwd=settings.cwd,
            env=there if hostname in remote else here,
            ranks=tuple(RankJob(slot.rank, rank_environment(slot)) for slot in group),
            secret=store.secret,
            launcher_pid=0 if hostname in remote else launcher_pid,
            user=group[0].user,
            network_interfaces=settings.network_interfaces,
            grace_s=settings.grace_s,
        )
        for hostname, group in _by_host(slots)
    ]


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
        **without_secrets(settings.environ),
        **settings.variables,
    }
    if interfaces:
        inherited["NCCL_SOCKET_IFNAME"] = ",".join(interfaces)
    return {
        **inherited,
        "PYTHONUNBUFFERED": "1",
        **_store_variables(store.address, store.port),
        "HOROVOD_CONTROLLER": "gloo",
        # With mpi the ranks tell that mpirun has to start them.
        "HOROVOD_CPU_OPERATIONS": inherited.get("HOROVOD_CPU_OPERATIONS") or "gloo",
        "HOROVOD_GLOO_IFACE": interfaces[0] if interfaces else LOOPBACK_INTERFACE,
    }


def _store_variables(address: str, port: int) -> dict[str, str]:
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def store_of(job: AgentJob) -> tuple[str, int]:
    """Address and port of the store of a job."""
    return (
        job.env["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
        int(job.env["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
    )


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
    return {
        "HOROVOD_HOSTNAME": slot.hostname,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
    }
