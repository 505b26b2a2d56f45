"""The search for the libraries of GPUs: the driver, and NCCL.

Nothing is compiled against them, and nothing is loaded before the first tensor on a GPU, or before
somebody asks. AMD's driver (HIP) and RCCL have the same functions under other names.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from horovod import _native
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._settings.config import Config

_DRIVER_NAMES = ("libcuda.so.1", "libcuda.so", "libamdhip64.so.7", "libamdhip64.so.6")
_NCCL_NAMES = ("libnccl.so.2", "libnccl.so", "librccl.so.1", "librccl.so")
# Where wheels put them, below site-packages: those of NVIDIA, and PyTorch's for ROCm.
_DRIVERS_IN_WHEELS = ("torch/lib/libamdhip64.so",)
_NCCL_IN_WHEELS = ("nvidia/nccl/lib/libnccl.so.2", "torch/lib/librccl.so")

F = TypeVar("F", bound=NamedTuple)


class Driver(NamedTuple):
    """The driver of this machine's GPUs.

    Attributes:
        path: of the library.
        version: as the driver counts: 13010 is 13.1.
        num_devices: that this process may use.
    """

    path: str
    version: int
    num_devices: int

    @property
    def is_hip(self) -> bool:
        """Whether the GPUs are AMD's."""
        return "amdhip" in self.path

    @property
    def title(self) -> str:
        """Name and version, for example "CUDA 13.1"."""
        if self.is_hip:
            return "HIP"
        return f"CUDA {self.version // 1000}.{self.version % 1000 // 10}"


class Nccl(NamedTuple):
    """A library of collectives for GPUs.

    Attributes:
        path: of the library.
        version: as NCCL counts: 22907 is 2.29.7.
        warning: of a known fault of this version, or empty.
    """

    path: str
    version: int
    warning: str

    @property
    def title(self) -> str:
        """Name and version, for example "NCCL 2.29.7"."""
        name = "RCCL" if "rccl" in self.path else "NCCL"
        # Before 2.9 the number had one digit less.
        unit = 10000 if self.version >= 10000 else 1000
        major, rest = divmod(self.version, unit)
        return f"{name} {major}.{rest // 100}.{rest % 100}"


@dataclass(frozen=True)
class Search(Generic[F]):
    """The result of looking for a library.

    Attributes:
        found: None if there is none.
        problem: what was tried, and why each did not do; empty if one was found.
    """

    found: F | None
    problem: str


def driver_candidates(given: str = "") -> list[str]:
    """Return where the driver of GPUs may be, the likeliest place first.

    Args:
        given: what the user named; then nothing else is tried.
    """
    return [given] if given else [*_DRIVER_NAMES, *_in_wheels(_DRIVERS_IN_WHEELS)]


def nccl_candidates(given: str = "") -> list[str]:
    """Return where NCCL may be, the likeliest first: wheels, this Python's prefix, the system.

    Args:
        given: what the user named; then nothing else is tried.
    """
    if given:
        return [given]
    in_prefix = [Path(sys.prefix) / "lib" / name for name in _NCCL_NAMES]
    found = [str(path) for path in in_prefix if path.exists()]
    return [*_in_wheels(_NCCL_IN_WHEELS), *found[:1], *_NCCL_NAMES]


def _in_wheels(places: Sequence[str]) -> list[str]:
    """The files among these that exist in a folder from which Python imports."""
    files = [Path(folder or ".") / place for place in places for folder in sys.path]
    return [str(file) for file in dict.fromkeys(files) if file.exists()]


def options(config: Config) -> _native.GpuOptions:
    """Return the engine's options for GPUs; loads no library."""
    return _native.GpuOptions(
        driver_candidates=driver_candidates(config.cuda_library),
        nccl_candidates=nccl_candidates(config.nccl_library),
        operations=config.gpu_operations,
        chunk_bytes=config.gpu_chunk_bytes,
        max_pinned_bytes=config.gpu_pinned_bytes,
    )


@functools.cache
def find_driver(given: str = "") -> Search[Driver]:
    """The driver that would be used, and how many GPUs it has; makes no context on any of them."""
    try:
        return Search(Driver(*_native.find_gpu(driver_candidates(given))), "")
    except UsageError as error:
        return Search(None, str(error))


@functools.cache
def find_nccl(given: str = "") -> Search[Nccl]:
    """The library that would be used for collectives of GPUs."""
    try:
        return Search(Nccl(*_native.find_nccl(nccl_candidates(given))), "")
    except UsageError as error:
        return Search(None, str(error))
