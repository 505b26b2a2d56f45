"""Starts an agent on this machine, and tells which hosts are this machine."""

from __future__ import annotations

import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from horovod.rendezvous.interfaces import is_loopback, own_addresses
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


def start_agent(environ: Mapping[str, str], stdin: int = -1) -> subprocess.Popen[bytes]:
    """Starts an agent that talks frames over pipes; it does nothing before it gets its job.

    It runs in a session of its own, so that Ctrl-C reaches the launcher alone.

    Args:
        environ: the variables of the agent itself.
        stdin: a descriptor that it inherits for one of its ranks; -1 for none.

    Raises:
        OSError: the process cannot be created.
    """
    return subprocess.Popen(
        python_command("horovod.runner.agent"),
        env=with_horovod_on_path(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=() if stdin < 0 else (stdin,),
        start_new_session=True,
    )


def network_interfaces() -> list[str]:
    """The names of the network interfaces of this machine."""
    return [name for _, name in socket.if_nameindex()]
