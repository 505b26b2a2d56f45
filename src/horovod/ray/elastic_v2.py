"""The path of earlier versions for the discovery of elastic jobs."""

from horovod.ray.discovery import RayHostDiscovery, TestDiscovery

__all__ = ["RayHostDiscovery", "TestDiscovery"]
