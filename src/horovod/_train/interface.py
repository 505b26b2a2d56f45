"""The common interface of all adapters: the job, its process sets, reductions, capabilities.

Adapters import all of it and add ``__all__`` to their own, so that each name stands here once.
"""

from horovod._rank.context import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    max_size,
    min_size,
    rank,
    shutdown,
    size,
    start_timeline,
    step,
    stop_timeline,
)
from horovod._train.capabilities import (
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
from horovod._train.logged.call import log
from horovod._train.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod._train.reduce_op import Adasum, Average, Sum

__all__ = [
    "Adasum",
    "Average",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "log",
    "max_size",
    "min_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "step",
    "stop_timeline",
]
