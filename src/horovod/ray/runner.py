"""The path of earlier versions for the executor."""

from horovod.ray.executor import RayExecutor
from horovod.ray.settings import MiniSettings

__all__ = ["MiniSettings", "RayExecutor"]
