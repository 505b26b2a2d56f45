"""Implements ``horovodrun --check``: asks the hosts and prints a table and advice."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from horovod.runner.checks.preflight import examine_hosts
from horovod.runner.checks.preflight_report import (
    COLUMNS,
    advice_on_hosts,
    forecast_of,
    lines_of_advice,
    plain_table,
    rows_of,
    verdict,
)
from horovod.runner.checks.run_on import launcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.runner.checks.preflight import Finding
    from horovod.runner.checks.run_on import StartModule
    from horovod.runner.placing.hosts import Host
    from horovod.runner.starting.requests import CheckRequest


def run(request: CheckRequest) -> int:
    """Do what ``horovodrun --check`` does; return the exit code."""
    start = launcher(request.environ, request.ssh)
    findings = examine_hosts(request.hosts, start, request.timeout_s, request.network_interfaces)
    code = tell(findings, sys.stdout)
    if request.workload is not None:
        print(forecast_of(findings, request.workload))
    return code


def check_hosts(
    hosts: Sequence[Host],
    start: StartModule,
    timeout_s: float,
    stdout: TextIO,
    interfaces: Sequence[str] = (),
) -> int:
    """Examines the hosts and tells about them.

    Args:
        hosts: whom to ask.
        start: creates a process on a host.
        timeout_s: until a host must have answered.
        stdout: takes the report; a terminal gets a table with lines.
        interfaces: at whose addresses the hosts may reach this machine; empty for any.

    Returns:
        The exit code: 1 if there is a fault.
    """
    return tell(examine_hosts(hosts, start, timeout_s, interfaces), stdout)


def tell(findings: Sequence[Finding], stdout: TextIO) -> int:
    """Print table, advice and verdict; return the exit code: 1 if there is a fault."""
    advice = advice_on_hosts(findings)
    _print_table(rows_of(findings), stdout)
    for line in [*lines_of_advice(advice), verdict(findings, advice)]:
        print(line, file=stdout)
    return 1 if any(each.is_fault for each in advice) else 0


def _print_table(rows: Sequence[Sequence[str]], stdout: TextIO) -> None:
    if not stdout.isatty():
        print(plain_table(rows), file=stdout)
        return
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(plain_table(rows), file=stdout)
        return
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*row)
    Console(file=stdout).print(table)
