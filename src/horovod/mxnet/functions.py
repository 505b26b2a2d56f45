"""Where libraries look for the broadcasts of state; scripts find them in ``horovod.mxnet``."""

from horovod._train.object_functions import allgather_object, broadcast_object
from horovod.mxnet.state import broadcast_parameters

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]
