"""The path where libraries import broadcasts of state; scripts use ``horovod.mxnet``."""

from horovod._train.object_functions import allgather_object, broadcast_object
from horovod.mxnet.state import broadcast_parameters

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]
