"""Where libraries look for lists of hosts; :mod:`horovod.runner.hosts` has them."""

from horovod.runner.hosts import Host, Slot, get_host_assignments, parse_host_files, parse_hosts

HostInfo = Host
SlotInfo = Slot

__all__ = ["HostInfo", "SlotInfo", "get_host_assignments", "parse_host_files", "parse_hosts"]
