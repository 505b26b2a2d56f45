"""Further names in the module ``mpi_ops`` of every adapter, for libraries."""

from horovod._train.availability import gpu_available
from horovod._train.basics import HorovodBasics
from horovod._train.gradients import split_list
from horovod._train.reduce_op import Max, Min, Product
from horovod._train.reduce_op import is_power_of_two as check_num_rank_power_of_2
from horovod._train.reduce_op import resolve_reduce_op as handle_average_backwards_compatibility

_basics = HorovodBasics()

__all__ = [
    "Max",
    "Min",
    "Product",
    "_basics",
    "check_num_rank_power_of_2",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "split_list",
]
