"""Which hosts a job may use now: the import path of earlier versions."""

from horovod.runner.placing.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript

__all__ = ["FixedHosts", "HostDiscovery", "HostDiscoveryScript"]
