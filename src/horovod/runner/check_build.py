"""``horovodrun --check-build``: what this installation can work with; nothing is imported."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING

import horovod

if TYPE_CHECKING:
    from collections.abc import Iterable

# Display name, module, and distributions that may have brought the module along.
_FRAMEWORKS = (
    ("TensorFlow", "tensorflow", ("tensorflow", "tensorflow-cpu", "tf-nightly")),
    ("PyTorch", "torch", ("torch",)),
    ("MXNet", "mxnet", ("mxnet", "mxnet-cu112", "mxnet-native")),
    ("JAX", "jax", ("jax",)),
)

# NCCL mostly comes with a wheel that PyTorch or JAX depends on.
_NCCL_MODULE = "nvidia.nccl"


def build_report() -> str:
    """The text that ``--check-build`` prints: three lists with ``[X]`` for what can be used.

    What is installed, but not supported in this version, is named without an ``[X]``.
    """
    return "\n".join(
        [
            f"Horovod v{horovod.__version__}:",
            "",
            "Available Frameworks:",
            *_lines(_framework(*entry) for entry in _FRAMEWORKS),
            "",
            "Available Controllers:",
            *_lines([(True, "native"), (False, "MPI")]),
            "",
            "Available Tensor Operations:",
            *_lines(
                [
                    (True, "native shared memory"),
                    (True, "native TCP"),
                    _unsupported("NCCL", _library("nccl") or _module(_NCCL_MODULE)),
                    (_library("mpi_abi"), "MPI (HOROVOD_CPU_OPERATIONS=mpi)"),
                ]
            ),
        ]
    )


def _lines(entries: Iterable[tuple[bool, str]]) -> list[str]:
    return [f"    [{'X' if found else ' '}] {name}" for found, name in entries]


def _framework(name: str, module: str, distributions: tuple[str, ...]) -> tuple[bool, str]:
    if not _module(module):
        return False, name
    if not _module(f"horovod.{module}"):
        return _unsupported(name, True)
    for distribution in distributions:
        try:
            return True, f"{name} {importlib.metadata.version(distribution)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return True, name


def _unsupported(name: str, found: bool) -> tuple[bool, str]:
    return False, f"{name} (found, but not supported in this version)" if found else name


def _module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _library(name: str) -> bool:
    return ctypes.util.find_library(name) is not None
