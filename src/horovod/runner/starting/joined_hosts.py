"""Hosts that join a job by themselves, on the launcher's side."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import horovod
from horovod._base import files
from horovod._rendezvous.messages import MAX_TIMEOUT_S
from horovod.errors import StartError, UsageError
from horovod.runner.placing.hosts import is_host_name
from horovod.runner.protocol import joining
from horovod.runner.protocol.joining import HostMessage, Session
from horovod.runner.starting.joined_agent import JoinedAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horovod._rendezvous.server import StoreServer
    from horovod.runner.protocol.invitation import Invitation
    from horovod.runner.supervision.sources import Discovery

# How long the store waits at the end for hosts to read that the job is over.
_GOODBYE_S = 2.0


@dataclass
class _Visit:
    """A host that takes part."""

    message: HostMessage
    num_agents: int = 0
    agent: JoinedAgent | None = None
    leaves: bool = False


class JoinedHosts:
    """Lists hosts that joined beside those of another discovery, and starts agents on them.

    Its thread reads what hosts say; all else belongs to whoever calls it, from any thread.

    Args:
        others: tells which hosts there are without them.
        log: takes one line for ``--verbose``.

    Attributes:
        changed: called, on a thread, when a host has joined or gone.
    """

    def __init__(self, others: Discovery, log: Callable[[str], None]) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._others = others
        self._log = log
        self._lock = threading.Lock()
        self._visits: dict[str, _Visit] = {}  # by name of host
        self._known: set[str] = set()  # that the others listed last
        self._server: StoreServer | None = None

    @contextmanager
    def using(self, server: StoreServer) -> Iterator[None]:
        """Lets hosts in inside of the block, and tells them at its end that the job is over."""
        self._server = server
        threading.Thread(target=self._read, name="horovod-joining", daemon=True).start()
        try:
            yield
        finally:
            with self._lock, suppress(StartError):
                for visit in self._visits.values():
                    server.set(joining.over_key(visit.message.visit), b"the job has ended")
            with suppress(StartError):  # somebody is slow to hear it, or dead
                server.wait_unused(_GOODBYE_S)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The hosts of the other discovery, then those that joined and do not leave."""
        hosts = dict(self._others.find_available_hosts_and_slots())
        with self._lock:
            self._known = set(hosts)
            stay = [visit.message for visit in self._visits.values() if not visit.leaves]
        return hosts | {
            message.host: message.slots for message in stay if message.host not in hosts
        }

    def close(self) -> None:
        """Ends a question to the other discovery that is under way."""
        if callable(close := getattr(self._others, "close", None)):
            close()

    def has(self, host: str) -> bool:
        """Whether a host joined by itself."""
        with self._lock:
            return host in self._visits

    def start_agent(self, host: str) -> JoinedAgent:
        """Has a host that joined start an agent.

        Raises:
            OSError: it is gone, or no pipe can be made.
        """
        assert self._server is not None
        with self._lock:
            if host not in self._visits:
                raise OSError("it has left the job")
            visit = self._visits[host]
            session = Session(visit.message.visit, visit.num_agents)
            visit.num_agents += 1
            visit.agent = JoinedAgent(self._server, session, host, self._on_agent_end)
            return visit.agent

    def _on_agent_end(self, host: str, agent: JoinedAgent) -> None:
        with self._lock:
            visit = self._visits.get(host)
            if visit is None or visit.agent is not agent:
                self._forget(agent.visit)
                return
            visit.agent = None
            if visit.leaves:
                self._part(visit)

    def _forget(self, visit: str) -> None:
        assert self._server is not None
        with suppress(StartError):  # the store is closed
            self._server.delete_prefix(joining.visit_prefix(visit))

    def _read(self) -> None:
        """Reads what hosts say, until the store is closed."""
        assert self._server is not None
        number = 0
        with suppress(StartError):
            while True:
                key = f"{joining.MESSAGES}{number}"
                found = self._server.wait_all([key], MAX_TIMEOUT_S)
                if key in found:
                    number += 1
                    self._hear(found[key])

    def _hear(self, text: bytes) -> None:
        try:
            message = HostMessage.from_json(text)
        except StartError as error:
            self._log(f"a host tries to join, but {error}")
            return
        with self._lock:
            visit = self._visits.get(message.host)
            if message.kind == joining.JOIN:
                self._answer(message)
            elif visit is not None and visit.message.visit == message.visit:
                self._bid_farewell(visit, message)
        self.changed()

    def _answer(self, message: HostMessage) -> None:
        assert self._server is not None
        reason = self._objection(message)
        if reason:
            self._log(f"{message.host} may not join: {reason}")
        else:
            self._visits[message.host] = _Visit(message)
            self._log(f"{message.host} joins the job with {message.slots} slots")
        self._server.set(joining.answer_key(message.visit), reason.encode())

    def _objection(self, message: HostMessage) -> str:
        """Return why a host may not join; empty if it may."""
        if message.version != horovod.__version__:
            return (
                f"it has Horovod {message.version}, but the launcher has {horovod.__version__}; "
                "install the same version on all hosts"
            )
        if not is_host_name(message.host):
            return f"{message.host!r} is not the name of a host; give it another one: -H NAME:N"
        if not 1 <= message.slots <= joining.MOST_SLOTS:
            return f"it offers {message.slots} slots; offer 1 to {joining.MOST_SLOTS}: -H NAME:N"
        if len(self._visits) >= joining.MOST_HOSTS:
            return f"{joining.MOST_HOSTS} hosts have joined the job already"
        if message.host in self._known or message.host in self._visits:
            return (
                f"the job has a host {message.host} already; give this one another name: -H NAME:N"
            )
        return ""

    def _bid_farewell(self, visit: _Visit, message: HostMessage) -> None:
        if message.kind == joining.LEAVE:
            self._log(f"{message.host} wants to leave the job")
            visit.leaves = True
            if visit.agent is None:
                self._part(visit)
            return
        self._log(f"the connection of {message.host}, which had joined, has ended")
        del self._visits[message.host]
        if visit.agent is not None:
            visit.agent.kill()
        else:
            self._forget(message.visit)

    def _part(self, visit: _Visit) -> None:
        """Lets a host go whose workers have left."""
        assert self._server is not None
        with suppress(StartError):  # the job is over as well
            self._server.set(joining.over_key(visit.message.visit), b"it has left the job")


@contextmanager
def join_file(path: str, invitation: Invitation) -> Iterator[None]:
    """Writes a private file with which hosts can join, and removes it at the end of the block.

    Raises:
        UsageError: it exists already, or cannot be written.
    """
    with ExitStack() as stack:
        try:
            # Whole from the beginning: a host may wait for it.
            with files.writing_whole(path, 0o600, replaces=False) as file:
                file.write(invitation.to_json() + b"\n")
                # Open to the end, so that no other file gets its number.
                own = os.dup(file.fileno())
                stack.callback(os.close, own)
        except FileExistsError:
            raise UsageError(
                f"--join-file {path}: it exists; does another job use it? If not, remove it"
            ) from None
        except OSError as error:
            raise UsageError(f"cannot write --join-file {path}: {error.strerror}") from None
        try:
            yield
        finally:
            with suppress(OSError):
                if os.path.samestat(os.lstat(path), os.fstat(own)):  # not that of a later job
                    os.unlink(path)
