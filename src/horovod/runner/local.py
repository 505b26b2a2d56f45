"""Starts an agent on this machine, and tells which hosts are this machine."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from horovod.errors import StartError
from horovod.runner.environment import python_command, with_horovod_on_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    return any(address in own or _is_loopback(address) for address in found)


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


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def reachable_addresses(interfaces: Sequence[str] = ()) -> list[str]:
    """The addresses of this machine that other hosts may be able to reach, IPv4 first.

    Args:
        interfaces: only those of these interfaces, if this machine has one of them that is up.

    Raises:
        StartError: this machine has no address but loopback.
    """
    entries = psutil.net_if_addrs()
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    wanted = up.intersection(interfaces) or up
    found = [
        entry.address
        for family in (socket.AF_INET, socket.AF_INET6)
        for name in sorted(wanted, key=[*interfaces, *entries].index)
        for entry in entries.get(name, ())
        # An address that holds for one link only means another thing on each host.
        if entry.family == family and "%" not in entry.address and not _is_loopback(entry.address)
    ]
    if not found:
        raise StartError(
            "this machine has no address that other hosts could reach; its interfaces are "
            f"{', '.join(entries)}"
        )
    return found


def interfaces_of(address: str) -> list[str]:
    """The names of the interfaces that hold an address of this machine."""
    return [
        name
        for name, entries in psutil.net_if_addrs().items()
        if any(entry.address == address for entry in entries)
    ]


def start_agent(environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts an agent that talks frames over pipes; it does nothing before it gets its job.

    It runs in a session of its own, so that Ctrl-C reaches the launcher alone.

    Args:
        environ: the variables of the agent itself.

    Raises:
        OSError: the process cannot be created.
    """
    return subprocess.Popen(
        python_command("horovod.runner.agent"),
        env=with_horovod_on_path(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def network_interfaces() -> list[str]:
    """The names of the network interfaces of this machine."""
    return [name for _, name in socket.if_nameindex()]
