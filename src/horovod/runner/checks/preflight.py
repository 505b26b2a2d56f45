"""``horovodrun --check``: asks all hosts at once, as a job would reach them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from horovod._job.job import LocalJob, open_job
from horovod._rendezvous.interfaces import reachable_addresses
from horovod.errors import StartError
from horovod.runner.checks.facts import Facts
from horovod.runner.checks.probe import ended_key
from horovod.runner.checks.run_on import HostError, explain_here, run_on
from horovod.runner.placing import this_machine
from horovod.runner.starting import ssh

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod._rendezvous.server import StoreServer
    from horovod.runner.checks.run_on import StartModule
    from horovod.runner.placing.hosts import Host

_PROBE = "horovod.runner.checks.probe"
# A host that is stuck must not cost its neighbors the whole timeout.
LINKS_S = 10.0


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
    """Result of the examination of one host.

    Attributes:
        host: as the user wrote it.
        slots: ranks that it shall hold; None if the user did not say.
        facts: None if the host did not answer.
        fault: why it did not answer, or could not reach the launcher; empty if all went well.
        address: from which it reached the launcher; others reach it there.
        clock_s: how far its clock is ahead of the launcher's; None if it is not known.
        links: to its neighbors.
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
    start: StartModule,
    timeout_s: float,
    interfaces: Sequence[str] = (),
    links_s: float = LINKS_S,
) -> list[Finding]:
    """Asks every host what it is like, and lets neighbors measure the network between them.

    Args:
        hosts: whom to ask.
        start: creates a process on a host.
        timeout_s: until a host must have answered.
        interfaces: at whose addresses the hosts may reach this machine; empty for any.
        links_s: for neighbors to appear and to be measured, at most ``timeout_s``.

    Returns:
        One finding per host, in their order.

    Raises:
        StartError: the store cannot listen.
    """
    names = [host.name for host in hosts]
    remote = this_machine.other_machines(names)
    with (
        _open_job(remote, interfaces) as opened,
        ThreadPoolExecutor(2 * len(hosts)) as pool,
    ):
        store = opened.server
        question = {
            "num_hosts": len(hosts),
            "endpoints": store.endpoints,
            "secret": opened.where.secret.hex(),
            "links_s": min(links_s, timeout_s),
        }
        clocks = [pool.submit(_clock_s, store, index, timeout_s) for index in range(len(hosts))]
        answers = [
            pool.submit(
                partial(_ask, store=store),
                host,
                host.name in remote,
                {**question, "index": index},
                start,
                timeout_s,
            )
            for index, host in enumerate(hosts)
        ]
        reports = [answer.result() for answer in answers]
        store.close()  # ends the waits for the clocks of hosts that did not answer
        return [
            _finding(host, report, clock.result(), names)
            for host, report, clock in zip(hosts, reports, clocks, strict=True)
        ]


def _open_job(remote: Sequence[str], interfaces: Sequence[str]) -> LocalJob:
    """At loopback, or at all addresses of which some host may know only one."""
    if not remote:
        return open_job()
    address, *further = reachable_addresses(interfaces)
    return open_job(address, further_addresses=further)


def _ask(
    host: Host,
    is_remote: bool,
    question: Mapping[str, Any],
    start: StartModule,
    timeout_s: float,
    store: StoreServer,
) -> dict[str, Any]:
    explain = ssh.explain if is_remote else explain_here
    begin = partial(start, host, is_remote)
    try:
        return run_on(begin, _PROBE, question, timeout_s, explain)
    except HostError as error:
        return {"fault": str(error)}
    finally:
        store.set(ended_key(question["index"]), b"")


def _clock_s(store: StoreServer, index: int, timeout_s: float) -> float | None:
    """Return by how many seconds a host's clock is ahead, including the message's travel time."""
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
