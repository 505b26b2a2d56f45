"""``horovodrun --check``: asks all hosts at once, as a job would reach them."""

from __future__ import annotations

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from horovod.errors import StartError
from horovod.rendezvous.secret import make_secret
from horovod.rendezvous.server import StoreServer
from horovod.runner import local
from horovod.runner.facts import Facts
from horovod.runner.run_on import HostError, run_on

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

    from horovod.runner.hosts import Host

_LOOPBACK = "127.0.0.1"
_PROBE = "horovod.runner.probe"
# Any port does: nothing is sent.
_DISCARD_PORT = 9


@dataclass(frozen=True)
class Link:
    """The network from one host to another.

    Attributes:
        source, target: hosts as the user wrote them.
        latency_s, bytes_per_s: 0 if they could not be measured.
        fault: why they could not; empty if they could.
    """

    source: str
    target: str
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    fault: str = ""


@dataclass(frozen=True)
class Finding:
    """What was found out about one host.

    Attributes:
        host: as the user wrote it.
        slots: ranks that it shall hold; None if the user did not say.
        facts: None if the host did not answer.
        fault: why it did not answer, or could not reach the launcher; empty if all went well.
        address: from which it reached the launcher; others reach it there.
        clock_s: how far its clock is ahead of the launcher's; None if it is not known.
        links: to its neighbours.
    """

    host: str
    slots: int | None = None
    facts: Facts | None = None
    fault: str = ""
    address: str = ""
    clock_s: float | None = None
    links: tuple[Link, ...] = field(default=())


def examine_hosts(
    hosts: Sequence[Host],
    start: Callable[[str, str], subprocess.Popen[bytes]],
    timeout_s: float,
) -> list[Finding]:
    """Asks every host what it is like, and lets neighbours measure the network between them.

    Args:
        hosts: whom to ask.
        start: creates a process on a host, see :func:`horovod.runner.run_on.run_on`.
        timeout_s: until a host must have answered.

    Returns:
        One finding per host, in their order.

    Raises:
        StartError: the store cannot listen.
    """
    secret = make_secret()
    address = _address_for([host.name for host in hosts])
    with StoreServer(secret, address=address) as store, ThreadPoolExecutor(2 * len(hosts)) as pool:
        question = {
            "num_hosts": len(hosts),
            "address": store.address,
            "port": store.port,
            "secret": secret.hex(),
            "timeout_s": timeout_s,
        }
        clocks = [pool.submit(_clock_s, store, index, timeout_s) for index in range(len(hosts))]
        answers = [
            pool.submit(_ask, host.name, {**question, "index": index}, start, timeout_s)
            for index, host in enumerate(hosts)
        ]
        reports = [answer.result() for answer in answers]
        store.close()  # ends the waits for the clocks of hosts that did not answer
        names = [host.name for host in hosts]
        return [
            _finding(host, report, clock.result(), names)
            for host, report, clock in zip(hosts, reports, clocks, strict=True)
        ]


def _address_for(names: Sequence[str]) -> str:
    """The address of this machine from which the first other machine would be reached."""
    for name in names:
        if not local.is_local(name):
            with contextlib.suppress(OSError):
                family, kind, _, _, target = socket.getaddrinfo(
                    name, _DISCARD_PORT, type=socket.SOCK_DGRAM
                )[0]
                with socket.socket(family, kind) as sock:
                    sock.connect(target)  # sends nothing, but chooses a route
                    return str(sock.getsockname()[0])
    return _LOOPBACK


def _ask(
    host: str,
    question: Mapping[str, Any],
    start: Callable[[str, str], subprocess.Popen[bytes]],
    timeout_s: float,
) -> dict[str, Any]:
    try:
        return run_on(host, _PROBE, question, start, timeout_s)
    except HostError as error:
        return {"fault": str(error)}


def _clock_s(store: StoreServer, index: int, timeout_s: float) -> float | None:
    """How far a host's clock is ahead, to some milliseconds: the time of the message is in it."""
    try:
        told = store.get(f"clock/{index}", timeout_s)
    except StartError:
        return None
    return float(told) - time.time()


def _finding(
    host: Host, report: Mapping[str, Any], clock_s: float | None, names: Sequence[str]
) -> Finding:
    facts = Facts(**report["facts"]) if "facts" in report else None
    links = tuple(
        _link(host.name, names[int(target)], measured)
        for target, measured in report.get("links", {}).items()
    )
    return Finding(
        host=host.name,
        slots=host.slots,
        facts=facts,
        fault=report["fault"],
        address=report.get("address", ""),
        clock_s=clock_s,
        links=links,
    )


def _link(source: str, target: str, measured: Sequence[float] | str) -> Link:
    if isinstance(measured, str):
        return Link(source, target, fault=measured)
    latency_s, bytes_per_s = measured
    return Link(source, target, latency_s, bytes_per_s)
