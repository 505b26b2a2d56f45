"""Answers to scripts that ask which controllers and libraries are available.

This Horovod has one engine of its own, found in every build. Scripts take ``gloo_*`` for "works
without MPI", so these answer True. MPI, NCCL and the drivers of GPUs are found at run time.
"""

from __future__ import annotations

from horovod._rank import context
from horovod._rank.libraries import gpu
from horovod._rank.libraries.mpi import find_library


def mpi_enabled() -> bool:
    """Whether MPI moves the data of this job (``HOROVOD_CPU_OPERATIONS=mpi``)."""
    return context.uses_mpi()


def mpi_built() -> bool:
    """Whether an MPI library with the standard binary interface (libmpi_abi) is found here.

    Nothing is compiled against MPI: the answer is about this machine.
    """
    return find_library(context.settings().mpi_library) is not None


def mpi_threads_supported() -> bool:
    """Whether the program may call MPI from any thread while Horovod does.

    False if MPI does not move the data of this job.

    Raises:
        NotInitializedError: Horovod has not been initialized.
    """
    return context.mpi_threads_supported()


def gloo_enabled() -> bool:
    """Whether the job works without MPI. (The engine is Horovod's own, not Gloo.)"""
    return not context.uses_mpi()


def gloo_built() -> bool:
    """True: jobs work without MPI in every build. (The engine is Horovod's own, not Gloo.)"""
    return True


def nccl_built() -> int:
    """The version of the NCCL (or RCCL) library that is found here, such as 22907; 0 without one.

    Nothing is compiled against NCCL: the answer is about this machine.
    """
    nccl = gpu.find_nccl(context.settings().nccl_library).found
    return nccl.version if nccl else 0


def ddl_built() -> bool:
    """False: IBM DDL is not used."""
    return False


def ccl_built() -> bool:
    """False: Intel oneCCL is not used."""
    return False


def cuda_built() -> bool:
    """Whether a driver of NVIDIA's GPUs is found here; nothing is compiled against CUDA."""
    driver = gpu.find_driver(context.settings().cuda_library).found
    return driver is not None and not driver.is_hip


def rocm_built() -> bool:
    """Whether a driver of AMD's GPUs is found here; nothing is compiled against ROCm."""
    driver = gpu.find_driver(context.settings().cuda_library).found
    return driver is not None and driver.is_hip
