"""The start of a job on its hosts: who is ready, who failed, and where all reach the store. Pure.

The agents of the hosts try every endpoint at which the store listens, and say which answered with
the proof that it knows the job's secret. So nobody needs to know names of interfaces or routes.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod.runner.protocol.invitation import Endpoint


@dataclass(frozen=True)
class Readiness:
    """Reports of the agents so far.

    Attributes:
        missing: hosts whose agents have not reported.
        endpoints: those of the store, the best first; empty if hosts have none to choose.
        failed: why hosts cannot be used.
        reached: the endpoints that each host reached.
        trying: hosts that may still reach others.
    """

    missing: frozenset[str]
    endpoints: tuple[Endpoint, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    reached: Mapping[str, frozenset[Endpoint]] = field(default_factory=dict)
    trying: frozenset[str] = frozenset()

    @staticmethod
    def of(hosts: tuple[str, ...], endpoints: tuple[Endpoint, ...]) -> Readiness:
        """Return the readiness of hosts that have not reported."""
        nothing: dict[str, frozenset[Endpoint]] = dict.fromkeys(hosts, frozenset())
        return Readiness(frozenset(hosts), endpoints, {}, nothing, frozenset(hosts))

    def find(self, host: str) -> Readiness:
        """Note that an agent runs."""
        return replace(self, missing=self.missing - {host})

    def fail(self, host: str, reason: str) -> Readiness:
        """Note that a host cannot be used; its first reason counts."""
        failed = {**self.failed, host: self.failed.get(host, reason)}
        return replace(self, missing=self.missing - {host}, failed=failed)

    def reach(self, host: str, endpoint: Endpoint) -> Readiness:
        """Note that a host reaches an endpoint."""
        return replace(self, reached={**self.reached, host: self.reached[host] | {endpoint}})

    def give_up(self, host: str) -> Readiness:
        """Note that a host has tried everything."""
        return replace(self, trying=self.trying - {host})

    @property
    def choice(self) -> Endpoint | None:
        """The best endpoint that all hosts reached; None while there is none."""
        common = set(self.endpoints).intersection(*self.reached.values())
        return next((endpoint for endpoint in self.endpoints if endpoint in common), None)

    @property
    def is_complete(self) -> bool:
        """Whether the ranks may start."""
        is_connected = not self.endpoints or self.choice is not None
        return is_connected and not self.missing and not self.failed

    def failure(self, late: str = "") -> str:
        """Return why the job cannot start; empty if it still can, or has to wait.

        Args:
            late: what the time for the start was, once that is over; nobody is waited for then.
        """
        if self.missing:
            return ""
        if self.failed:
            unsure = self.trying - self.failed.keys() if self.endpoints and not late else ()
            waits = any(not self.reached[host] for host in unsure)
            return "" if waits else _describe(self.failed)
        if not self.endpoints or self.choice is not None:
            return ""
        if self.trying:
            return f"the hosts could not reach this machine {late}" if late else ""
        return self._nothing_in_common()

    def _nothing_in_common(self) -> str:
        names = [address for address, _ in self.endpoints]
        none = [host for host, reached in self.reached.items() if not reached]
        if none:
            return (
                f"no address of this machine can be reached from {', '.join(none)}: tried "
                f"{', '.join(names)}; does a firewall block connections to this machine? Name the "
                "interface of the right network with --network-interfaces"
            )
        shown = {
            host: ", ".join(endpoint[0] for endpoint in self.endpoints if endpoint in reached)
            for host, reached in self.reached.items()
        }
        found = "; ".join(f"{host} reached {addresses}" for host, addresses in shown.items())
        return (
            f"no address of this machine can be reached from all hosts: {found}; name an interface "
            "that all share with --network-interfaces"
        )


def _describe(reasons: Mapping[str, str]) -> str:
    if len(reasons) == 1:
        ((host, reason),) = reasons.items()
        return f"cannot start on host {host}: {reason}"
    lines = "".join(f"\n    {host}: {reason}" for host, reason in reasons.items())
    return f"cannot start on {len(reasons)} hosts:{lines}"
