"""Which address of the launcher all hosts can reach. Pure: reports come in, the choice comes out.

The agents of the hosts try every address at which the store listens, and say which answered with
the proof that it knows the job's secret. So nobody needs to know names of interfaces or routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.runner.protocol.invitation import Endpoint


class ConnectBack:
    """Collects what the hosts report.

    Args:
        endpoints: at which the store listens, the best first.
        hosts: that must reach it.
    """

    def __init__(self, endpoints: Sequence[Endpoint], hosts: Sequence[str]) -> None:
        self._endpoints = tuple(endpoints)
        self._reached: dict[str, set[int]] = {host: set() for host in hosts}
        self._trying = set(hosts)

    def reached(self, host: str, index: int) -> None:
        """A host reached the endpoint of this number."""
        if 0 <= index < len(self._endpoints):
            self._reached[host].add(index)

    def gave_up(self, host: str) -> None:
        """A host has tried everything."""
        self._trying.discard(host)

    def has_answered(self, host: str) -> bool:
        """Whether a host reached something, or has tried everything."""
        return bool(self._reached[host]) or host not in self._trying

    def choice(self) -> Endpoint | None:
        """The best endpoint that all hosts reached; None while there is none."""
        common = set(range(len(self._endpoints))).intersection(*self._reached.values())
        return self._endpoints[min(common)] if common else None

    def failure(self) -> str:
        """Why there will never be a choice; empty while there may be one."""
        if self._trying or self.choice() is not None:
            return ""
        names = [address for address, _ in self._endpoints]
        none = [host for host, found in self._reached.items() if not found]
        if none:
            return (
                f"no address of this machine can be reached from {', '.join(none)}: tried "
                f"{', '.join(names)}; does a firewall let connections to this machine pass? Name "
                "the interface of the right network with --network-interfaces"
            )
        found = "; ".join(
            f"{host} reached {', '.join(names[index] for index in sorted(indices))}"
            for host, indices in self._reached.items()
        )
        return (
            f"no address of this machine can be reached from all hosts: {found}; name an interface "
            "that all share with --network-interfaces"
        )
