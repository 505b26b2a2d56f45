"""Where libraries look for the operations; scripts find them in ``horovod.tensorflow``."""

from horovod.context import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from horovod.tensorflow.gradients import (
    _alltoall as _alltoall_grad,
)
from horovod.tensorflow.ops import (
    allgather,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from horovod.tensorflow.ops import (
    allreduce_dense as _allreduce,
)
from horovod.tensorflow.rank_ops import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from horovod.train.availability import gpu_available
from horovod.train.basics import HorovodBasics
from horovod.train.capabilities import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from horovod.train.gradients import split_list
from horovod.train.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.train.reduce_op import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from horovod.train.reduce_op import (
    is_power_of_two as check_num_rank_power_of_2,
)
from horovod.train.reduce_op import (
    resolve_reduce_op as handle_average_backwards_compatibility,
)

_basics = HorovodBasics()

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "_allreduce",
    "_alltoall_grad",
    "_basics",
    "add_process_set",
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "split_list",
    "start_timeline",
    "stop_timeline",
]
