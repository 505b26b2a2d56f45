"""The path where libraries import broadcasts of state; scripts use ``horovod.tensorflow``."""

from horovod.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from horovod.tensorflow.state import broadcast_global_variables, broadcast_variables

__all__ = [
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]
