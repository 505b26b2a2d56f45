"""What older scripts ask before they train: which controllers and libraries are there.

This Horovod has one engine of its own, found in every build. Scripts take ``gloo_*`` for "works
without MPI", so these answer True, and everything that would need a library answers False.
"""

from __future__ import annotations

from horovod.errors import UsageError


def mpi_enabled() -> bool:
    """False: MPI may start a job, but it never controls it."""
    return False


def mpi_built() -> bool:
    """False: nothing is compiled against MPI."""
    return False


def mpi_threads_supported() -> bool:
    """Raises, as MPI does not control the job.

    Raises:
        UsageError: always.
    """
    raise UsageError("mpi_threads_supported() has no answer: MPI does not control this job")


def gloo_enabled() -> bool:
    """True: the job works without MPI. (The engine is Horovod's own, not Gloo.)"""
    return True


def gloo_built() -> bool:
    """True: jobs work without MPI in every build. (The engine is Horovod's own, not Gloo.)"""
    return True


def nccl_built() -> int:
    """0: NCCL is not used in this version."""
    return 0


def ddl_built() -> bool:
    """False: IBM DDL is not used."""
    return False


def ccl_built() -> bool:
    """False: Intel oneCCL is not used."""
    return False


def cuda_built() -> bool:
    """False: nothing is compiled against CUDA."""
    return False


def rocm_built() -> bool:
    """False: nothing is compiled against ROCm."""
    return False
