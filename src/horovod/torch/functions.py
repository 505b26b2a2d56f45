"""The path where libraries import broadcasts of state; scripts use ``horovod.torch``."""

from horovod.torch.objects import allgather_object, broadcast_object
from horovod.torch.state import broadcast_optimizer_state, broadcast_parameters

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]
