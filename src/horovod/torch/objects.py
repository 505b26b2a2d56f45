"""Python objects between ranks, which the compiler leaves out of its graphs."""

from horovod._train import object_functions
from horovod.torch.compiling import outside_of_graphs

allgather_object = outside_of_graphs(object_functions.allgather_object)
broadcast_object = outside_of_graphs(object_functions.broadcast_object)
