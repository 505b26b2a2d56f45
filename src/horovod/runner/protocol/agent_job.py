"""The job that the agent of a host is to run.

A job travels to its agent over a pipe, never on a command line, because it holds the secret and
the whole environment.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from horovod._base.fast_dataclass import dataclass
from horovod._job.environment import Assignment, StoreAddress, store_in
from horovod._rendezvous.secret import check_secret
from horovod._settings.config import Config
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Slurm (KillWait) and Kubernetes give as much if nothing else was said; neither tells its jobs.
DEFAULT_GRACE_S = Config.grace_s
DEFAULT_ROLE = "worker"

_WRONG = (ValueError, LookupError, TypeError, AttributeError, RecursionError, StartError)


@dataclass(frozen=True)
class WorkerJob:
    """One process to start.

    Attributes:
        worker: its identity: no other process of the job ever has it, whatever its rank.
        rank: its first place.
        env: the variables that only this worker gets.
        command: the program and its arguments.
        role: what it does for the job.
    """

    worker: int
    rank: int
    env: Mapping[str, str]
    command: tuple[str, ...]
    role: str = DEFAULT_ROLE

    def to_json(self) -> bytes:
        """The worker as the agent reads it, for one that is started while others run."""
        return json.dumps([_row(self, 0), list(self.command)]).encode("ascii")

    @staticmethod
    def from_json(text: bytes) -> WorkerJob:
        """Reads what :meth:`to_json` wrote.

        Raises:
            StartError: it is something else. Nothing of it is repeated.
        """
        try:
            row, command = json.loads(text)
            return _worker(row, [command])
        except _WRONG as error:
            raise StartError(f"this is not a worker: {type(error).__name__}") from None


def _row(job: WorkerJob, command: int) -> list[Any]:
    return [job.worker, job.rank, dict(job.env), command, job.role]


def _worker(row: list[Any], commands: list[Any]) -> WorkerJob:
    worker, rank, env, command, role = row
    return _check_worker(WorkerJob(worker, rank, env, tuple(commands[command]), role))


def _check_worker(job: WorkerJob) -> WorkerJob:
    if not isinstance(job.env, dict) or not job.command:
        raise StartError("its variables are not a dictionary, or it has no command")
    texts = [job.role, *job.command, *itertools.chain.from_iterable(job.env.items())]
    if {*map(type, texts)} != {str} or {type(job.worker), type(job.rank)} != {int}:
        raise StartError("a field has the wrong type")
    return job


@dataclass(frozen=True)
class AgentJob:
    """Everything that the agent of one host needs.

    Attributes:
        hostname: as the user wrote it.
        cwd: where each worker runs.
        env: the variables that all workers of the host have in common, complete.
        workers: those that the host starts with.
        secret: of the job's store; the agent writes it into a private file.
        launcher_pid: the process on the agent's own machine whose death ends the job; 0 if the
            launcher runs elsewhere.
        user: whom to log in as; empty for the one that ssh takes. Only the launcher needs it.
        network_interfaces: of the user's choice, of which the host has one; empty for any.
        grace_s: between a signal that stops the job and SIGKILL.
        stdin_rank: the rank that gets a stdin; -1 for none.
        stdin: its descriptor, which the agent inherits; -1 for none.
        stays: whether the agent waits for further workers when none is left.
        slots: how many workers the host may have at a time; 0 for those that it starts with.
    """

    hostname: str
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    workers: tuple[WorkerJob, ...]
    secret: bytes = field(repr=False)
    launcher_pid: int = 0
    user: str = ""
    network_interfaces: tuple[str, ...] = ()
    grace_s: float = DEFAULT_GRACE_S
    stdin_rank: int = -1
    stdin: int = -1
    stays: bool = False
    slots: int = 0

    @property
    def remote(self) -> bool:
        """Whether the agent runs on another machine than the launcher."""
        return self.launcher_pid == 0

    @property
    def has_rank_0(self) -> bool:
        """Whether rank 0 starts on this host."""
        return any(worker.rank == 0 for worker in self.workers)

    def at(self, address: str, port: int) -> AgentJob:
        """Return this job with its store at another endpoint."""
        return replace(self, env={**self.env, **store_variables(address, port)})

    def to_json(self) -> bytes:
        """The job as the agent reads it; a command of many workers stands in it once."""
        commands = {command: index for index, command in enumerate(self.commands)}
        document = {
            "hostname": self.hostname,
            "commands": [list(command) for command in commands],
            "cwd": self.cwd,
            "env": dict(self.env),
            "workers": [_row(job, commands[job.command]) for job in self.workers],
            "secret": self.secret.hex(),
            "launcher_pid": self.launcher_pid,
            "user": self.user,
            "network_interfaces": self.network_interfaces,
            "grace_s": self.grace_s,
            "stdin_rank": self.stdin_rank,
            "stdin": self.stdin,
            "stays": self.stays,
            "slots": self.slots,
        }
        return json.dumps(document).encode("ascii")

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The commands of the workers, each once."""
        return tuple(dict.fromkeys(job.command for job in self.workers))

    @staticmethod
    def from_json(text: bytes) -> AgentJob:
        """Reads what :meth:`to_json` wrote.

        Raises:
            StartError: it is something else. Nothing of it is repeated: it holds the secret.
        """
        try:
            document = json.loads(text)
            commands = document["commands"]
            job = AgentJob(
                hostname=document["hostname"],
                cwd=document["cwd"],
                env=document["env"],
                workers=tuple(_check_worker(_worker(row, commands)) for row in document["workers"]),
                secret=check_secret(bytes.fromhex(document["secret"])),
                launcher_pid=document["launcher_pid"],
                user=document["user"],
                network_interfaces=tuple(document["network_interfaces"]),
                grace_s=float(document["grace_s"]),
                stdin_rank=document["stdin_rank"],
                stdin=document["stdin"],
                stays=document["stays"] is True,
                slots=document["slots"],
            )
            return _checked(job)
        except _WRONG as error:
            raise StartError(f"this is not the job of an agent: {type(error).__name__}") from None


def _checked(job: AgentJob) -> AgentJob:
    """Returns the job if its fields have their types, and can be given to a process."""
    if not isinstance(job.env, dict):
        raise StartError("its variables are not a dictionary")
    texts = [job.hostname, job.cwd, job.user, *job.network_interfaces]
    texts += itertools.chain.from_iterable(job.env.items())
    numbers = [job.launcher_pid, job.stdin_rank, job.stdin, job.slots]
    if {*map(type, texts)} != {str} or {*map(type, numbers)} != {int}:
        raise StartError("a field has the wrong type")
    return job


def store_variables(address: str, port: int) -> dict[str, str]:
    """The variables that say where the store of a job is.

    Without the secret, which the agent of each host writes into a file.
    """
    return Assignment(StoreAddress(address, port)).variables()


def store_of(job: AgentJob) -> tuple[str, int]:
    """Address and port of the store of a job."""
    store = store_in(job.env)
    assert store is not None, "the plan of a job names its store"
    return store.address, store.port
