"""``horovodrun --check-build``: what this installation can work with. No framework is imported."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import horovod
from horovod.runner.facts import FRAMEWORKS, engine_kernels, framework_versions, has_module

if TYPE_CHECKING:
    from collections.abc import Iterable

_LATER = "found, but not supported in this version"

_NO_MPIRUN = "no mpirun on the path; horovodrun does without"

# NCCL mostly comes with a wheel that PyTorch or JAX depends on.
_NCCL_MODULE = "nvidia.nccl"


@dataclass(frozen=True)
class Entry:
    """One line of the report.

    Attributes:
        name: with its version, where it has one.
        usable: whether Horovod works with it.
        detail: where it was found, or why it is not usable; shown with ``--verbose``.
    """

    name: str
    usable: bool
    detail: str = ""


def build_report(verbose: bool = False) -> str:
    """The text that ``--check-build`` prints: three lists with ``[X]`` for what can be used.

    What is installed, but not supported in this version, is named without an ``[X]``.

    Args:
        verbose: also tell where each thing was found, and why something is missing.
    """
    kernels, fault = engine_kernels()
    engine = Entry(
        "native", not fault, fault or f"{kernels} kernels, {_path_of('horovod._native')}"
    )
    sections = {
        "Available Frameworks": _frameworks(),
        "Available Controllers": [engine, _mpirun()],
        "Available Tensor Operations": [
            Entry("native shared memory", not fault, fault or f"{kernels} kernels"),
            Entry("native TCP", not fault, fault or f"{kernels} kernels"),
            _nccl(),
            _mpi(),
        ],
    }
    lines = [f"Horovod v{horovod.__version__}:"]
    if verbose:
        lines.append(f"Python {sys.version.split()[0]} at {sys.executable}")
    for title, entries in sections.items():
        lines += ["", f"{title}:", *_lines(entries, verbose)]
    return "\n".join(lines)


def _lines(entries: Iterable[Entry], verbose: bool) -> list[str]:
    found = []
    for entry in entries:
        detail = f": {entry.detail}" if verbose and entry.detail else ""
        found.append(f"    [{'X' if entry.usable else ' '}] {entry.name}{detail}")
    return found


def _frameworks() -> list[Entry]:
    versions = framework_versions()
    return [_framework(name, module, versions.get(name)) for name, module, _ in FRAMEWORKS]


def _framework(name: str, module: str, version: str | None) -> Entry:
    if version is None:
        return Entry(name, False, f"no module {module} for this Python")
    titled = name if version == "?" else f"{name} {version}"
    if not has_module(f"horovod.{module}"):
        return Entry(f"{titled} ({_LATER})", False, _path_of(module))
    return Entry(titled, True, _path_of(module))


def _path_of(module: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return ""
    return "" if spec is None else str(getattr(spec, "origin", None) or "")


def _mpirun() -> Entry:
    found = shutil.which("mpirun")
    return Entry("MPI", found is not None, f"{found} may start the ranks" if found else _NO_MPIRUN)


def _nccl() -> Entry:
    path = _library("nccl", _NCCL_MODULE)
    if not path:
        return Entry(
            "NCCL", False, "no libnccl.so.2 among the libraries of the system or of Python"
        )
    version = nccl_version(path)
    titled = f"NCCL {version}" if version else "NCCL"
    return Entry(f"{titled} ({_LATER})", False, path)


def _mpi() -> Entry:
    try:
        # Loads the engine, which a launcher does without.
        from horovod.mpi import find_library

        found = find_library()
    except ImportError:  # the engine's own line tells more
        found = None
    if found is None:
        return Entry("MPI", False, "no libmpi_abi.so (MPI 5) of the system, Python or mpirun")
    path, version = found
    return Entry("MPI (HOROVOD_CPU_OPERATIONS=mpi)", True, f"{path}, {version}")


def _library(name: str, module: str = "") -> str:
    """Where a shared library is: the system's, of this Python's prefix, or in a module's folder."""
    if found := ctypes.util.find_library(name):
        return found
    folders = [Path(sys.prefix) / "lib"]
    if module and has_module(module):
        spec = importlib.util.find_spec(module)
        folders += [
            Path(place) / "lib" for place in getattr(spec, "submodule_search_locations", None) or ()
        ]
    matches = (str(path) for folder in folders for path in sorted(folder.glob(f"lib{name}.so*")))
    return next(matches, "")


def nccl_version(path: str) -> str:
    """The version that NCCL itself tells, such as 2.27.3; empty if the library cannot be loaded."""
    number = ctypes.c_int()
    try:
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return ""
    major, rest = divmod(number.value, 10000)
    return f"{major}.{rest // 100}.{rest % 100}"
