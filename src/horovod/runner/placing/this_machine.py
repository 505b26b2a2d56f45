"""Which names and network interfaces are those of this machine."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from horovod._rendezvous.interfaces import is_loopback, own_addresses

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_LOOKUPS = 64


def is_local(name: str) -> bool:
    """Whether a host name or address means this machine.

    Args:
        name: as the user wrote it; it may be looked up in the network.
    """
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return False
    own = own_addresses()
    return any(address in own or is_loopback(address) for address in found)


def other_machines(names: Sequence[str]) -> list[str]:
    """Those of the host names that are not this machine, in their order.

    Names that nobody can resolve are among them: ssh may know them from its configuration.

    Args:
        names: as the user wrote them; they are looked up in the network, all at once.
    """
    if not names:
        return []
    with ThreadPoolExecutor(min(len(names), _MAX_LOOKUPS)) as pool:
        return [
            name for name, here in zip(names, pool.map(is_local, names), strict=True) if not here
        ]


def network_interfaces() -> list[str]:
    """The names of the network interfaces of this machine."""
    return [name for _, name in socket.if_nameindex()]
