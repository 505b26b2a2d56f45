"""The start of a job on its hosts: who is ready, who failed, and whether to go on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import horovod

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod.runner.protocol.invitation import Endpoint
    from horovod.runner.supervision.connect_back import ConnectBack


@dataclass(frozen=True)
class Decision:
    """What to do now.

    Attributes:
        go: whether the ranks may start.
        endpoint: where they find the store, if the hosts had to find out.
        failure: why the job ends; empty if it does not.
    """

    go: bool = False
    endpoint: Endpoint | None = None
    failure: str = ""


class HostReadiness:
    """Collects what the agents report until all of them are ready.

    Args:
        hosts: of the job.
        ways: collects how they reach the store; None if the jobs say where it is.
    """

    def __init__(self, hosts: Sequence[str], ways: ConnectBack | None) -> None:
        self._missing = dict.fromkeys(hosts)
        self._hosts = tuple(hosts)
        self._ways = ways
        self._failed: dict[str, str] = {}

    def on_ready(self, host: str, version: str) -> None:
        """An agent runs; an empty version is as good as ours."""
        if version and version != horovod.__version__:
            self.on_failed(
                host,
                f"it has Horovod {version}, but this machine has {horovod.__version__}; install "
                "the same version on all hosts",
            )
        self._missing.pop(host, None)

    def on_failed(self, host: str, reason: str) -> None:
        """A host cannot be used; its first reason counts."""
        self._failed.setdefault(host, reason)
        self._missing.pop(host, None)

    def decide(self) -> Decision:
        """Waits while a host has not answered; names all that failed at once."""
        if self._missing:
            return Decision()
        if self._failed:
            good = [host for host in self._hosts if host not in self._failed]
            if self._ways is not None and not all(map(self._ways.has_answered, good)):
                return Decision()
            return Decision(failure=_describe(self._failed))
        if self._ways is None:
            return Decision(go=True)
        endpoint = self._ways.choice()
        return Decision(endpoint is not None, endpoint, self._ways.failure())

    def give_up(self, timeout_s: float, complaints: Callable[[str], str]) -> str:
        """Why the job ends when the time for its start is over.

        Args:
            timeout_s: that time.
            complaints: what the agent of a host wrote, to be put behind a line.
        """
        limit = f"within {timeout_s:g} s; raise --start-timeout if it needs longer"
        for host in self._missing:
            self._failed[host] = f"no agent came up there {limit}{complaints(host)}"
        if self._failed:
            return _describe(self._failed)
        return f"the hosts did not find a way to this machine {limit}"


def _describe(reasons: dict[str, str]) -> str:
    if len(reasons) == 1:
        ((host, reason),) = reasons.items()
        return f"cannot start on host {host}: {reason}"
    lines = "".join(f"\n    {host}: {reason}" for host, reason in reasons.items())
    return f"cannot start on {len(reasons)} hosts:{lines}"
