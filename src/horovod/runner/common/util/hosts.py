"""Exports :mod:`horovod.runner.placing.hosts` under the path that libraries import."""

from horovod.runner.placing.hosts import (
    Host,
    Slot,
    get_host_assignments,
    parse_host_files,
    parse_hosts,
)

HostInfo = Host
SlotInfo = Slot

__all__ = ["HostInfo", "SlotInfo", "get_host_assignments", "parse_host_files", "parse_hosts"]
