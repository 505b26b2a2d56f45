"""The means of starting agents: here, through ssh, or on hosts that join."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from horovod._rendezvous.interfaces import reachable_addresses
from horovod.errors import StartError
from horovod.runner.placing import this_machine
from horovod.runner.starting import local, ssh
from horovod.runner.starting.requests import (
    GONE,
    ElasticRequest,
    FixedRequest,
    InvitedRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from horovod._rendezvous.server import StoreServer
    from horovod.runner.placing.hosts import Host
    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.protocol.invitation import Invitation
    from horovod.runner.starting.joined_hosts import JoinedHosts
    from horovod.runner.starting.requests import Inviting, JobRequest
    from horovod.runner.starting.ssh import SshOptions
    from horovod.runner.supervision.link import AgentLink, AgentProcess
    from horovod.runner.supervision.sources import Discovery
    from horovod.runner.supervision.supervisor import Alarm

AGENT_MODULE = "horovod.runner.agent"
EXIT_WAIT_S = 1.0  # from the end of an agent's output to its exit code

_LOOPBACK = "127.0.0.1"


class Means(Protocol):
    """How agents are started on the hosts of a job.

    Attributes:
        crosses: whether other machines take part, or may do so later.
        discovery: lists the hosts there are; None if they stay.
    """

    crosses: bool
    discovery: Discovery | None

    def addresses(self, interfaces: Sequence[str]) -> list[str]:
        """Return where the store of the job listens.

        Args:
            interfaces: names that the user chose; empty for any.

        Raises:
            StartError: there is no such address.
        """
        ...

    def attend(
        self, server: StoreServer, invitation: Invitation
    ) -> AbstractContextManager[Alarm | None]:
        """Let hosts take part inside of the block.

        Yields:
            What may end the job from outside; None if nothing can.
        """
        ...

    def is_remote(self, host: str) -> bool:
        """Return whether a host has variables and a working directory of its own."""
        ...

    def start_agent(self, job: AgentJob) -> AgentProcess:
        """Start the agent of a host.

        Raises:
            OSError: it cannot be started.
        """
        ...

    def explain(self, link: AgentLink) -> str:
        """Return why an agent is gone, in one line."""
        ...


class Hosts:
    """This machine, and others through ssh.

    Args:
        names: of the hosts that are known now; they are looked up in the network.
        environ: the variables of agents here, and of ssh.
        options: how to log in on other hosts.
        discovery: lists the hosts there are; None if they stay.
        may_grow: whether other hosts may come later.
    """

    def __init__(
        self,
        names: Sequence[str],
        environ: Mapping[str, str],
        options: SshOptions,
        discovery: Discovery | None = None,
        *,
        may_grow: bool = False,
    ) -> None:
        self.discovery = discovery
        self._names = names
        self._others = this_machine.other_machines(names)
        self._environ = environ
        self._options = options
        self._may_grow = may_grow or discovery is not None
        self.crosses = self._may_grow or bool(self._others)

    def addresses(self, interfaces: Sequence[str]) -> list[str]:
        """See :class:`Means`."""
        if not self.crosses:
            return [_LOOPBACK]
        try:
            return reachable_addresses(interfaces)
        except StartError:
            if not self._may_grow:
                raise
            return [_LOOPBACK]  # then all hosts are names of this machine

    def attend(
        self, server: StoreServer, invitation: Invitation
    ) -> AbstractContextManager[Alarm | None]:
        """See :class:`Means`."""
        return nullcontext()

    def is_remote(self, host: str) -> bool:
        """See :class:`Means`."""
        known = host in self._names
        return host in self._others if known else not this_machine.is_local(host)

    def start_agent(self, job: AgentJob) -> AgentProcess:
        """See :class:`Means`."""
        if not job.remote:
            return local.start_agent(self._environ, job.stdin)
        return ssh.start(job.hostname, job.user, self._options, AGENT_MODULE, self._environ)

    def explain(self, link: AgentLink) -> str:
        """See :class:`Means`."""
        code = link.exit_code(EXIT_WAIT_S)
        lines = link.complaints()
        if link.job.remote:
            return ssh.explain(code, lines)
        wrote = "; it wrote:" + "".join(f"\n    {line}" for line in lines) if lines else ""
        return f"it ended{wrote}"


class InvitedHosts:
    """Hosts that join by themselves, in addition to others.

    Args:
        joined: the hosts that join.
        inviting: lets them join.
        gone: why such a host is lost.
        hosts: the others.
    """

    crosses = True

    def __init__(self, joined: JoinedHosts, inviting: Inviting, gone: str, hosts: Hosts) -> None:
        self.joined = joined
        self.discovery: Discovery | None = joined
        self._inviting = inviting
        self._gone = gone
        self._hosts = hosts

    def addresses(self, interfaces: Sequence[str]) -> list[str]:
        """See :class:`Means`."""
        return self._hosts.addresses(interfaces)

    @contextmanager
    def attend(self, server: StoreServer, invitation: Invitation) -> Iterator[Alarm | None]:
        """See :class:`Means`."""
        with ExitStack() as stack:
            # Hosts hear that the job is over before their invitation ends.
            alarm = stack.enter_context(self._inviting(invitation))
            stack.enter_context(self.joined.using(server))
            yield alarm

    def is_remote(self, host: str) -> bool:
        """See :class:`Means`."""
        return self.joined.has(host) or self._hosts.is_remote(host)

    def start_agent(self, job: AgentJob) -> AgentProcess:
        """See :class:`Means`."""
        if self.joined.has(job.hostname):
            return self.joined.start_agent(job.hostname)
        return self._hosts.start_agent(job)

    def explain(self, link: AgentLink) -> str:
        """See :class:`Means`."""
        return self._hosts.explain(link) if link.pid else self._gone


def means_of(request: JobRequest, log: Callable[[str], None]) -> Means:
    """Choose how the agents of a job are started.

    Args:
        request: the job.
        log: takes one line for ``--verbose``.
    """
    environ, options = request.settings.environ, request.options.ssh
    fixed: Sequence[Host] = ()
    discovery = inviting = None
    gone = GONE
    if isinstance(request, FixedRequest):
        names = list(dict.fromkeys(slot.hostname for slot in request.slots))
        return Hosts(names, environ, options)
    if isinstance(request, ElasticRequest):
        elastic = request.elastic
        fixed, discovery = elastic.hosts, elastic.discovery
        inviting, gone = elastic.inviting, elastic.gone
    elif isinstance(request, InvitedRequest):
        inviting, gone = request.inviting, request.gone
    names = [host.name for host in fixed]
    hosts = Hosts(names, environ, options, discovery, may_grow=inviting is not None)
    if inviting is None:
        return hosts
    # Not for every job: they take their time to load.
    from horovod.runner.placing.discovery import FixedHosts
    from horovod.runner.starting.joined_hosts import JoinedHosts

    others = discovery or FixedHosts({host.name: host.slots or 0 for host in fixed})
    return InvitedHosts(JoinedHosts(others, log), inviting, gone, hosts)
