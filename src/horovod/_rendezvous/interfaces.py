"""The network interfaces of this machine and their addresses."""

from __future__ import annotations

import ipaddress
import socket
from types import ModuleType
from typing import TYPE_CHECKING

from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence


def _psutil() -> ModuleType:
    """Return psutil, which takes its time to load and only jobs on several hosts need."""
    import psutil  # type: ignore[import-untyped]

    assert isinstance(psutil, ModuleType)
    return psutil


def is_loopback(address: str) -> bool:
    """Whether an IPv4 or IPv6 address means the machine itself, whichever it is."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def own_addresses() -> set[str]:
    """All addresses of this machine."""
    return {entry.address for entries in _psutil().net_if_addrs().values() for entry in entries}


def reachable_addresses(interfaces: Sequence[str] = ()) -> list[str]:
    """The addresses of this machine that other hosts may be able to reach, IPv4 first.

    Args:
        interfaces: only those of these interfaces, if this machine has one of them that is up.

    Raises:
        StartError: this machine has no address but loopback.
    """
    psutil = _psutil()
    entries = psutil.net_if_addrs()
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup and name in entries}
    wanted = up.intersection(interfaces) or up
    found = [
        entry.address
        for family in (socket.AF_INET, socket.AF_INET6)
        for name in sorted(wanted, key=[*interfaces, *entries].index)
        for entry in entries[name]
        # An address that holds for one link only means another thing on each host.
        if entry.family == family and "%" not in entry.address and not is_loopback(entry.address)
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
        for name, entries in _psutil().net_if_addrs().items()
        if any(entry.address == address for entry in entries)
    ]


def address_of(interface: str) -> str:
    """The address of an interface, IPv4 if it has one.

    Raises:
        StartError: there is no such interface, or it has no address; the message lists the others.
    """
    entries = _psutil().net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in entries.get(interface, ()):
            if entry.family == family:
                return str(entry.address)
    raise StartError(
        f"HOROVOD_GLOO_IFACE={interface} names no network interface with an address; there are "
        f"{', '.join(entries)}"
    )
