"""The path where libraries import questions about the build, and a function to cut lists."""

from horovod._settings.config import temporary_environment as env
from horovod._train.availability import (
    ccl_built,
    cuda_built,
    ddl_built,
    extension_available,
    gloo_built,
    gpu_available,
    mpi_built,
    nccl_built,
    rocm_built,
)
from horovod._train.gradients import split_list
from horovod._train.reduce_op import is_power_of_two as num_rank_is_power_2

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "env",
    "extension_available",
    "gloo_built",
    "gpu_available",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "rocm_built",
    "split_list",
]
