"""Questions about the build as libraries ask them, before ``init()`` and with ``verbose``.

Earlier versions were compiled for each framework and each library; this one is not, so the answers
are about what is found on this machine.
"""

from __future__ import annotations

from importlib.util import find_spec

from horovod._train import capabilities

_ADAPTERS = ("torch", "tensorflow", "mxnet", "jax")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether Horovod works with a framework here: it has an adapter, and the framework is there.

    Args:
        ext_base_name: the framework: "torch", "tensorflow", "mxnet" or "jax".
        verbose: has no effect.
    """
    return ext_base_name in _ADAPTERS and find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the tensors of a framework stay on GPUs; those of TensorFlow are copied to the host.

    Args:
        ext_base_name: the framework: "torch", "tensorflow", "mxnet" or "jax".
        verbose: has no effect.
    """
    has_gpu = capabilities.cuda_built() or capabilities.rocm_built()
    return ext_base_name == "torch" and has_gpu and extension_available(ext_base_name)


def mpi_built(verbose: bool = False) -> bool:
    """Whether an MPI library that could move the data is found here."""
    return capabilities.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """True: jobs work without MPI in every build. (The engine is Horovod's own, not Gloo.)"""
    return capabilities.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    """Whether NCCL (or RCCL) is found here."""
    return capabilities.nccl_built() != 0


def ddl_built(verbose: bool = False) -> bool:
    """False: IBM DDL is not used."""
    return capabilities.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """False: Intel oneCCL is not used."""
    return capabilities.ccl_built()


def cuda_built(verbose: bool = False) -> bool:
    """Whether a driver of NVIDIA's GPUs is found here."""
    return capabilities.cuda_built()


def rocm_built(verbose: bool = False) -> bool:
    """Whether a driver of AMD's GPUs is found here."""
    return capabilities.rocm_built()
