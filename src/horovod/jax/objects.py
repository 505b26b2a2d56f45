"""Python objects between ranks, outside of jit."""

from horovod._train import object_functions
from horovod.jax.calls import outside_of_jit

allgather_object = outside_of_jit(object_functions.allgather_object)
broadcast_object = outside_of_jit(object_functions.broadcast_object)
