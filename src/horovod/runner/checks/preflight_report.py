"""From what was found on the hosts to a table and advice. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from horovod._rank.reports.network_cost import forecast, rate_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.runner.checks.facts import Facts
    from horovod.runner.checks.preflight import Finding
    from horovod.runner.starting.requests import Workload

MIB = 1024 * 1024

# Timelines and logs of several hosts are read side by side.
MOST_CLOCK_DIFFERENCE_S = 1.0
# A rank holds some descriptors of its own, and up to three for each peer.
_OWN_DESCRIPTORS = 128
_DESCRIPTORS_PER_PEER = 3
# The default of containers; loaders of data with worker processes need more.
_LITTLE_SHARED_MEMORY_BYTES = 64 * MIB
# A tenth of the median: such a host slows all others down.
_SLOW = 0.1

COLUMNS = ("host", "python", "horovod", "frameworks", "kernels", "address", "clock", "network")


@dataclass(frozen=True)
class Advice:
    """One thing to know about a host.

    Attributes:
        host: as the user wrote it.
        text: what is wrong and what to do.
        is_fault: whether a job would fail or suffer; otherwise it is only worth knowing.
    """

    host: str
    text: str
    is_fault: bool = True


def advice_on_hosts(findings: Sequence[Finding]) -> list[Advice]:
    """Return advice on faults of the hosts; the majority's versions count as correct.

    Args:
        findings: of all hosts.
    """
    present = [finding.facts for finding in findings if finding.facts is not None]
    size = sum(finding.slots or 1 for finding in findings)
    advice = []
    for finding in findings:
        if finding.fault:
            advice.append(Advice(finding.host, finding.fault))
        if finding.facts is not None:
            advice += _on_versions(finding.host, finding.facts, present)
            advice += _on_limits(finding, finding.facts, size)
        advice += _on_clock(finding)
    return advice + _on_links(findings)


def _on_versions(host: str, facts: Facts, present: Sequence[Facts]) -> list[Advice]:
    usual_python = _usual([each.python for each in present])
    usual_horovod = _usual([each.horovod for each in present])
    advice = []
    if facts.fault_of_engine:
        text = f"the engine cannot be loaded: {facts.fault_of_engine}; install Horovod again"
        advice.append(Advice(host, text))
    if facts.horovod != usual_horovod:
        text = f"Horovod is {facts.horovod}, elsewhere {usual_horovod}; install the same version"
        advice.append(Advice(host, text))
    if facts.python != usual_python:
        same_minor = facts.python.rpartition(".")[0] == usual_python.rpartition(".")[0]
        text = f"Python is {facts.python}, elsewhere {usual_python}; use the same version"
        advice.append(Advice(host, text, is_fault=not same_minor))
    names = dict.fromkeys(name for each in present for name in each.frameworks)
    for name in names:
        version = facts.frameworks.get(name, "missing")
        usual = _usual([each.frameworks.get(name, "missing") for each in present])
        if version != usual:
            text = f"{name} is {version}, elsewhere {usual}; install the same version"
            advice.append(Advice(host, text))
    return advice


def _usual(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]


def _on_limits(finding: Finding, facts: Facts, size: int) -> list[Advice]:
    advice = []
    if facts.fault_of_memfd:
        text = f"ranks cannot share memory (memfd): {facts.fault_of_memfd}; free or allow memory"
        advice.append(Advice(finding.host, text))
    needed = _OWN_DESCRIPTORS + _DESCRIPTORS_PER_PEER * size
    if facts.descriptors < needed:
        text = (
            f"a process may open {facts.descriptors} files, and {size} ranks need about {needed}; "
            f"raise the limit (ulimit -n {needed})"
        )
        advice.append(Advice(finding.host, text))
    free = facts.shared_memory_bytes
    if free is not None and free <= _LITTLE_SHARED_MEMORY_BYTES:
        text = (
            f"/dev/shm has {free // MIB} MiB free; data loaders with worker processes need more "
            "(docker run --shm-size=1g)"
        )
        advice.append(Advice(finding.host, text, is_fault=False))
    if finding.slots is not None and finding.slots > facts.cores:
        cores = f"{facts.cores} core{'s' if facts.cores > 1 else ''}"
        text = f"{finding.slots} ranks share {cores}; give the host fewer slots"
        advice.append(Advice(finding.host, text, is_fault=False))
    return advice


def _on_clock(finding: Finding) -> list[Advice]:
    if finding.clock_s is None or abs(finding.clock_s) <= MOST_CLOCK_DIFFERENCE_S:
        return []
    where = "ahead of" if finding.clock_s > 0 else "behind"
    text = f"its clock is {abs(finding.clock_s):.1f} s {where} this machine's; run chrony or ntpd"
    return [Advice(finding.host, text)]


def _on_links(findings: Sequence[Finding]) -> list[Advice]:
    links = [link for finding in findings for link in finding.links]
    answered = {finding.host for finding in findings if not finding.fault}
    advice = []
    rates = sorted(link.bytes_per_s for link in links if not link.fault)
    for link in links:
        if link.fault:
            if link.target in answered:
                text = (
                    f"cannot reach {link.target}: {link.fault}; does a firewall block "
                    "connections between the hosts?"
                )
                advice.append(Advice(link.source, text))
        elif link.bytes_per_s < _SLOW * rates[len(rates) // 2]:
            text = (
                f"the network to {link.target} carries {rate_of(link.bytes_per_s)}, others "
                f"{rate_of(rates[len(rates) // 2])}; look for a slow cable, port or route"
            )
            # Measured with little data, and perhaps beside other jobs.
            advice.append(Advice(link.source, text, is_fault=False))
    return advice


def rows_of(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """The cells of the table, one row per host, in the order of COLUMNS."""
    return [_row(finding) for finding in findings]


def _row(finding: Finding) -> tuple[str, ...]:
    facts = finding.facts
    if facts is None:
        return (finding.host, *["no answer"], *[""] * (len(COLUMNS) - 2))
    frameworks = ", ".join(f"{name} {version}" for name, version in facts.frameworks.items())
    clock = "" if finding.clock_s is None else f"{1000 * finding.clock_s:+.0f} ms"
    network = ", ".join(
        f"{rate_of(link.bytes_per_s)} and {1e6 * link.latency_s:.0f} µs to {link.target}"
        for link in finding.links
        if not link.fault
    )
    return (
        finding.host,
        facts.python,
        facts.horovod,
        frameworks or "none",
        facts.kernels or "none",
        finding.address or "none",
        clock,
        network,
    )


def lines_of_advice(advice: Sequence[Advice]) -> list[str]:
    """One line for each: faults first, in the order of the hosts."""
    ordered = sorted(advice, key=lambda each: not each.is_fault)
    return [f"{'fault' if each.is_fault else 'hint'}: {each.host}: {each.text}" for each in ordered]


def forecast_of(findings: Sequence[Finding], workload: Workload) -> str:
    """Return the line of what the network will cost the steps of a training."""
    rates: dict[str, float] = {}
    latencies = []
    for link in (link for finding in findings for link in finding.links if not link.fault):
        latencies.append(link.latency_s)
        for host in (link.source, link.target):
            rates[host] = max(rates.get(host, 0.0), link.bytes_per_s)
    unknown = [finding.host for finding in findings if not rates.get(finding.host)]
    if unknown:
        return f"no forecast: the network of {', '.join(unknown)} could not be measured"
    cost = forecast(
        ranks=[finding.slots or 1 for finding in findings],
        link_bytes_per_s=[rates[finding.host] for finding in findings],
        latency_s=median(latencies),
        step_s=workload.step_s,
        gradient_bytes=workload.gradient_bytes,
    )
    return f"forecast: {cost.text()}"


def verdict(findings: Sequence[Finding], advice: Sequence[Advice]) -> str:
    """The last line."""
    faulty = {each.host for each in advice if each.is_fault}
    checked = f"{len(findings)} host{'s' if len(findings) > 1 else ''} checked"
    if not faulty:
        return f"{checked}, no fault found"
    return f"{checked}, {len(faulty)} with faults: {', '.join(sorted(faulty))}"


def plain_table(rows: Sequence[Sequence[str]]) -> str:
    """The table for a file or a pipe: columns that are as wide as they must be."""
    cells = [COLUMNS, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
