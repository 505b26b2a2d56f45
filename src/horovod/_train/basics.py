"""The questions about a job as one object, which libraries read as ``hvd.mpi_ops._basics``."""

from __future__ import annotations

from horovod._rank import context
from horovod._train import capabilities
from horovod._train.reduce_op import Adasum, Average, Max, Min, Product, Sum


class HorovodBasics:
    """The functions of the same names, as methods; all objects of it tell of the same job.

    Args:
        pkg_path, args: what earlier versions loaded their library from; have no effect.
    """

    Adasum, Average, Max, Min, Product, Sum = Adasum, Average, Max, Min, Product, Sum

    init = staticmethod(context.init)
    shutdown = staticmethod(context.shutdown)
    is_initialized = staticmethod(context.is_initialized)
    start_timeline = staticmethod(context.start_timeline)
    stop_timeline = staticmethod(context.stop_timeline)

    rank = staticmethod(context.rank)
    size = staticmethod(context.size)
    local_rank = staticmethod(context.local_rank)
    local_size = staticmethod(context.local_size)
    cross_rank = staticmethod(context.cross_rank)
    cross_size = staticmethod(context.cross_size)
    is_homogeneous = staticmethod(context.is_homogeneous)

    mpi_threads_supported = staticmethod(capabilities.mpi_threads_supported)
    mpi_enabled = staticmethod(capabilities.mpi_enabled)
    mpi_built = staticmethod(capabilities.mpi_built)
    gloo_enabled = staticmethod(capabilities.gloo_enabled)
    gloo_built = staticmethod(capabilities.gloo_built)
    nccl_built = staticmethod(capabilities.nccl_built)
    ddl_built = staticmethod(capabilities.ddl_built)
    ccl_built = staticmethod(capabilities.ccl_built)
    cuda_built = staticmethod(capabilities.cuda_built)
    rocm_built = staticmethod(capabilities.rocm_built)

    def __init__(self, pkg_path: str | None = None, *args: object) -> None:
        del pkg_path, args
