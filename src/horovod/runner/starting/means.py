"""The means of starting agents: here, through ssh, or on hosts that join."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from horovod._rendezvous.interfaces import reachable_addresses
from horovod.errors import StartError
from horovod.runner.placing import this_machine
from horovod.runner.starting import local, ssh
from horovod.runner.starting.requests import ElasticRequest, FixedRequest, InvitedRequest
from horovod.runner.supervision.agents import explain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horovod._rendezvous.server import StoreServer
    from horovod.runner.placing.hosts import Host
    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.protocol.invitation import Invitation
    from horovod.runner.starting.joined_hosts import JoinedHosts
    from horovod.runner.starting.requests import Inviting, JobRequest
    from horovod.runner.supervision.link import AgentLink, AgentProcess
    from horovod.runner.supervision.sources import Discovery
    from horovod.runner.supervision.supervisor import Alarm

AGENT_MODULE = "horovod.runner.agent"
EXIT_WAIT_S = 1.0  # from the end of an agent's output to its exit code

_LOOPBACK = "127.0.0.1"


class Means:
    """Starts agents on this machine, and on others through ssh.

    Args:
        request: the job.
        names: of the hosts that are known now; they are looked up in the network.
        discovery: lists the hosts there are; None if they stay.

    Attributes:
        crosses: whether other machines take part, or may do so later.
        discovery: see above.
    """

    def __init__(
        self, request: JobRequest, names: Sequence[str], discovery: Discovery | None = None
    ) -> None:
        self.discovery = discovery
        self._names = dict.fromkeys(names)
        self._others = this_machine.other_machines(list(self._names))
        self._environ = request.settings.environ
        self._ssh = request.options.ssh
        self.crosses = discovery is not None or bool(self._others)

    def addresses(self, interfaces: Sequence[str]) -> list[str]:
        """Return where the store listens; ``interfaces`` are those that the user named."""
        if not self.crosses:
            return [_LOOPBACK]
        try:
            return reachable_addresses(interfaces)
        except StartError:
            if self.discovery is None:
                raise
            return [_LOOPBACK]  # then all hosts are names of this machine

    @contextmanager
    def attend(self, server: StoreServer, invitation: Invitation) -> Iterator[Alarm | None]:
        """Let hosts take part inside of the block; yield what may end the job, or None."""
        yield None

    def is_remote(self, host: str) -> bool:
        """Return whether a host has variables and a working directory of its own."""
        if host in self._names:
            return host in self._others
        return not this_machine.is_local(host)

    def start_agent(self, job: AgentJob) -> AgentProcess:
        """Start the agent of a host; raise OSError if that is impossible."""
        if not job.remote:
            return local.start_agent(self._environ, job.stdin)
        return ssh.start(job.hostname, job.user, self._ssh, AGENT_MODULE, self._environ)

    def explain(self, link: AgentLink) -> str:
        """Return why an agent is gone, in one line."""
        code = link.exit_code(EXIT_WAIT_S)
        return ssh.explain(code, link.complaints()) if link.job.remote else explain(link)


class InvitedHosts(Means):
    """Starts agents on hosts that join by themselves, too.

    Args:
        request, names: see :class:`Means`.
        joined: the hosts that join; it knows the others.
        inviting: lets them join.
        gone: why such a host is lost.
    """

    def __init__(
        self,
        request: JobRequest,
        names: Sequence[str],
        joined: JoinedHosts,
        inviting: Inviting,
        gone: str,
    ) -> None:
        super().__init__(request, names, joined)
        self.joined = joined
        self._inviting = inviting
        self._gone = gone

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
        return self.joined.has(host) or super().is_remote(host)

    def start_agent(self, job: AgentJob) -> AgentProcess:
        """See :class:`Means`."""
        joined = self.joined
        if joined.has(job.hostname):
            return joined.start_agent(job.hostname)
        return super().start_agent(job)

    def explain(self, link: AgentLink) -> str:
        """See :class:`Means`."""
        return super().explain(link) if link.pid else self._gone


def means_of(request: JobRequest, log: Callable[[str], None]) -> Means:
    """Choose how the agents of a job are started; ``log`` takes lines for ``--verbose``."""
    if isinstance(request, FixedRequest):
        return Means(request, [slot.hostname for slot in request.slots])
    assert isinstance(request, ElasticRequest | InvitedRequest)
    hosts: Sequence[Host] = ()
    discovery = None
    if isinstance(request, ElasticRequest):
        hosts, discovery = request.hosts, request.discovery
    names = [host.name for host in hosts]
    if request.inviting is None:
        return Means(request, names, discovery)
    # Not for every job: they take their time to load.
    from horovod.runner.placing.discovery import FixedHosts
    from horovod.runner.starting.joined_hosts import JoinedHosts

    others = discovery or FixedHosts({host.name: host.slots or 0 for host in hosts})
    joined = JoinedHosts(others, log)
    return InvitedHosts(request, names, joined, request.inviting, request.gone)
