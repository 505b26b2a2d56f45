"""Defines how a host joins a job by itself: the values exchanged through the job's store.

No ssh leads to such a host. The host starts its agent itself, and the frames between launcher and
agent are values in the store. What is stored cannot be forged, but can be read on the network. So
neither the secret nor the environment of the launcher is among it: the host has both of its own.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Protocol

from horovod._rendezvous.bounds import names_in, number_in
from horovod._rendezvous.messages import MAX_TIMEOUT_S
from horovod._rendezvous.secret import SECRET_BYTES
from horovod.errors import StartError
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
from horovod.runner.protocol.frames import Frame, Kind
from horovod.runner.protocol.invitation import Invitation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JOIN, LEAVE, GONE = "join", "leave", "gone"

MESSAGES = "joining/messages/"
"""The list of what all hosts say, in order."""

MOST_SLOTS = 4096
"""That a host may offer; workers are started on as many as the job takes."""
MOST_HOSTS = 10_000
"""That may take part at a time."""

_ANY_SLOTS = 10**15  # so many are refused by name, more are no number of slots
_MOST_MESSAGE_BYTES = 4096
_NO_SECRET = bytes(SECRET_BYTES)
HOST_PYTHON = "<python>"
"""Stands in a command for the Python that the host has joined with."""

# What a job says about itself, and no more of the launcher's environment, is sent to a host.
_OF_THE_JOB = ("HOROVOD_", "NCCL_")
_SECRETS = "HOROVOD_SECRET_"


class Store(Protocol):
    """The interface of a store that both ends use: the server has it, and its clients."""

    def set(self, key: str, value: bytes) -> None:
        """Stores a value."""

    def wait_all(
        self, keys: Sequence[str], timeout_s: float, stop_key: str = ""
    ) -> Mapping[str, bytes]:
        """Waits for values."""

    def delete_prefix(self, prefix: str) -> object:
        """Deletes values."""


@dataclass(frozen=True)
class HostMessage:
    """A message of a host.

    Attributes:
        kind: JOIN, LEAVE (its user wants it back) or GONE (the store says so when its connection
            ends).
        visit: a random text, unique for this host and this time.
        host: its name in the job.
        slots: how many workers it may have.
        version: of its Horovod.
    """

    kind: str
    visit: str
    host: str
    slots: int
    version: str

    def to_json(self) -> bytes:
        """Serialize for the store."""
        return json.dumps(asdict(self)).encode("ascii")

    @staticmethod
    def from_json(text: bytes) -> HostMessage:
        """Reads what :meth:`to_json` wrote.

        Raises:
            StartError: it is something else.
        """
        try:
            if len(text) > _MOST_MESSAGE_BYTES:
                raise ValueError("it is too long")
            fields = json.loads(text)
            # Another version may say more, and is told that it is another one.
            message = HostMessage(**{name: fields[name] for name in HostMessage.__annotations__})
            names_in((message.kind, message.visit, message.host, message.version))
            number_in(message.slots, -_ANY_SLOTS, _ANY_SLOTS)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise StartError(f"no host says this: {type(error).__name__}") from None
        return message


def new_visit() -> str:
    """A name for one stay of a host in a job."""
    return secrets.token_hex(8)


def visit_prefix(visit: str) -> str:
    """Return the prefix of all store keys of one visit."""
    return f"joining/{visit}/"


def answer_key(visit: str) -> str:
    """Return the key of the answer to a host: empty if it may join, or else the reason."""
    return f"{visit_prefix(visit)}answer"


def over_key(visit: str) -> str:
    """Return the key that says that a host's visit is over, and why."""
    return f"{visit_prefix(visit)}over"


@dataclass(frozen=True)
class Session:
    """One agent of a host that joined; a host may have several, one after another.

    Attributes:
        visit: of the host.
        number: from 0.
    """

    visit: str
    number: int

    @property
    def wanted_key(self) -> str:
        """Appears when the host is to start the agent."""
        return f"{visit_prefix(self.visit)}{self.number}/wanted"

    @property
    def broken_key(self) -> str:
        """Appears when one end no longer listens."""
        return f"{visit_prefix(self.visit)}{self.number}/broken"

    @property
    def to_agent(self) -> str:
        """Prefix of the frames for the agent."""
        return f"{visit_prefix(self.visit)}{self.number}/to-agent"

    @property
    def to_launcher(self) -> str:
        """Prefix of the frames for the launcher."""
        return f"{visit_prefix(self.visit)}{self.number}/to-launcher"


class Sender:
    """Puts bytes into a store, one value after another."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._number = 0

    def send(self, data: bytes) -> None:
        """Sends some bytes; none are the end.

        Raises:
            StartError: the store was lost.
        """
        self._store.set(f"{self._prefix}/{self._number}/", data)
        self._number += 1


class Receiver:
    """Takes out of a store what a :class:`Sender` put there."""

    def __init__(self, store: Store, session: Session, prefix: str) -> None:
        self._store = store
        self._session = session
        self._prefix = prefix
        self._number = 0

    def receive(self) -> bytes:
        """Waits for the next bytes; none are the end, and none come once the session is broken.

        Raises:
            StartError: the store was lost.
        """
        key = f"{self._prefix}/{self._number}/"
        found = self._store.wait_all([key], MAX_TIMEOUT_S, self._session.broken_key)
        data = found.get(key, b"")
        if data:
            self._store.delete_prefix(key)
            self._number += 1
        return data


def for_host(frame: Frame) -> Frame:
    """A frame for an agent without secrets, and without the environment of the launcher. Pure."""
    if frame.kind is Kind.INVITATION:
        invitation = replace(Invitation.from_json(frame.payload), secret=_NO_SECRET)
        return replace(frame, payload=invitation.to_json())
    if frame.kind is Kind.JOB:
        job = AgentJob.from_json(frame.payload)
        env = {
            name: value
            for name, value in job.env.items()
            if name.startswith(_OF_THE_JOB) and not name.startswith(_SECRETS)
        }
        cleared = replace(job, env=env, secret=_NO_SECRET, launcher_pid=0)
        return replace(frame, payload=cleared.to_json())
    return frame


def at_host(
    frame: Frame, secret: bytes, environ: Mapping[str, str], cwd: str, python: str = ""
) -> Frame:
    """Return the frame with what the host has itself. Pure.

    Args:
        frame: made by :func:`for_host`.
        secret: of the job.
        environ: what the workers inherit; the variables of the job come before it.
        cwd: where they run.
        python: what :data:`HOST_PYTHON` stands for.
    """
    if frame.kind is Kind.INVITATION:
        invitation = replace(Invitation.from_json(frame.payload), secret=secret)
        return replace(frame, payload=invitation.to_json())
    if frame.kind is Kind.JOB:
        job = AgentJob.from_json(frame.payload)
        env = {**environ, "PYTHONUNBUFFERED": "1", **job.env}
        workers = tuple(_with_python(worker, python) for worker in job.workers)
        own = replace(job, env=env, secret=secret, cwd=cwd, workers=workers)
        return replace(frame, payload=own.to_json())
    if frame.kind is Kind.START_WORKER:
        worker = _with_python(WorkerJob.from_json(frame.payload), python)
        return replace(frame, payload=worker.to_json())
    return frame


def _with_python(worker: WorkerJob, python: str) -> WorkerJob:
    command = tuple(python if word == HOST_PYTHON else word for word in worker.command)
    return replace(worker, command=command)
