"""Collects facts of a host: versions, limits, the engine. It imports nothing heavy."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import socket
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import horovod
from horovod._rank.cores import usable_cores

if TYPE_CHECKING:
    from collections.abc import Mapping

# Display name, module, and distributions that may have brought the module along.
FRAMEWORKS = (
    ("TensorFlow", "tensorflow", ("tensorflow", "tensorflow-cpu", "tf-nightly")),
    ("Keras", "keras", ("keras", "keras-nightly")),
    ("PyTorch", "torch", ("torch",)),
    ("JAX", "jax", ("jax",)),
    ("MXNet", "mxnet", ("mxnet", "mxnet-cu112", "mxnet-native")),
)
SHARED_MEMORY = "/dev/shm"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True)
class Facts:
    """One host.

    Attributes:
        hostname: as the host calls itself.
        python, executable: version and path of its Python.
        horovod: version.
        frameworks: version by display name, of those that are installed.
        kernels: the instruction set of the engine's kernels; empty if the engine cannot be loaded.
        fault_of_engine: why it cannot; empty if it can.
        fault_of_memfd: why memory cannot be shared between ranks; empty if it can.
        cores: that this process may use.
        descriptors: how many files a process may open.
        shared_memory_bytes: free in /dev/shm; None if there is none.
        boot: identifies the running system; equal on "hosts" that are one machine.
    """

    hostname: str
    python: str
    executable: str
    horovod: str
    frameworks: Mapping[str, str] = field(default_factory=dict)
    kernels: str = ""
    fault_of_engine: str = ""
    fault_of_memfd: str = ""
    cores: int = 1
    descriptors: int = 1024
    shared_memory_bytes: int | None = None
    boot: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as a dictionary for JSON."""
        return asdict(self)


def collect_facts() -> Facts:
    """Looks at this host."""
    kernels, fault_of_engine = engine_kernels()
    return Facts(
        hostname=socket.gethostname(),
        python=platform.python_version(),
        executable=sys.executable,
        horovod=horovod.__version__,
        frameworks=framework_versions(),
        kernels=kernels,
        fault_of_engine=fault_of_engine,
        fault_of_memfd=_fault_of_memfd(),
        cores=usable_cores(),
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        shared_memory_bytes=_free_shared_memory(),
        boot=_boot_id(),
    )


def framework_versions() -> dict[str, str]:
    """Versions by display name; "?" where a module was found without its distribution."""
    found = {}
    for name, module, distributions in FRAMEWORKS:
        if has_module(module):
            found[name] = _version_of(distributions)
    return found


def has_module(name: str) -> bool:
    """Whether a module could be imported, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def engine_kernels() -> tuple[str, str]:
    """The instruction set of the engine's kernels, and why the engine cannot be loaded."""
    try:
        from horovod import _native
    except ImportError as error:
        return "", str(error)
    return _native.kernel_isa(), ""


def _version_of(distributions: tuple[str, ...]) -> str:
    for distribution in distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "?"


def _fault_of_memfd() -> str:
    try:
        descriptor = os.memfd_create("horovod-check")
    except OSError as error:
        return error.strerror or str(error)
    try:
        os.posix_fallocate(descriptor, 0, 1024 * 1024)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(descriptor)
    return ""


def _free_shared_memory() -> int | None:
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _boot_id() -> str:
    try:
        with open(_BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return ""
