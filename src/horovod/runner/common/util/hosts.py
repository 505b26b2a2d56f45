"""Where libraries look for lists of hosts; :mod:`horovod.runner.placing.hosts` has them."""

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
