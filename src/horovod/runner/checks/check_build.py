"""``horovodrun --check-build``: what this installation can work with. No framework is imported."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import horovod
from horovod.runner.checks.facts import FRAMEWORKS, engine_kernels, framework_versions, has_module

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horovod._rank.libraries.gpu import Driver, Nccl, Search

_LATER = "found, but not supported in this version"

# As horovod.mxnet.requirement says it.
_ONLY = {"mxnet": "1.9.1"}

_NO_MPIRUN = "no mpirun on the path; horovodrun does not need it"


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
            *_gpu(),
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
        detail = detail.replace("\n", "\n      ")  # below what it belongs to
        found.append(f"    [{'X' if entry.usable else ' '}] {entry.name}{detail}")
    return found


def _frameworks() -> list[Entry]:
    versions = framework_versions()
    return [_framework(name, module, versions.get(name)) for name, module, _ in FRAMEWORKS]


def _framework(name: str, module: str, version: str | None) -> Entry:
    if version is None:
        return Entry(name, False, f"no module {module} for this Python")
    titled = name if version == "?" else f"{name} {version}"
    wanted = _ONLY.get(module, version)
    if version != wanted:
        return Entry(f"{titled} ({_LATER}; {wanted} is)", False, _path_of(module))
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


def _gpu() -> list[Entry]:
    """The driver of GPUs and NCCL; with the first alone, tensors go through host memory."""
    try:
        # Loads the engine, which a launcher does without.
        from horovod._rank.libraries import gpu

        driver, nccl = gpu.find_driver(), gpu.find_nccl()
    except ImportError as error:
        return [Entry("GPU", False, str(error)), Entry("NCCL", False, str(error))]
    return [_driver(driver), _nccl(nccl)]


def _driver(search: Search[Driver]) -> Entry:
    driver = search.found
    if driver is None:
        return Entry("GPU", False, search.problem)
    devices = f"{driver.num_devices} device{'' if driver.num_devices == 1 else 's'}"
    return Entry(f"GPU ({driver.title}, {devices})", driver.num_devices > 0, driver.path)


def _nccl(search: Search[Nccl]) -> Entry:
    nccl = search.found
    if nccl is None:
        return Entry("NCCL", False, search.problem)
    warning = f" ({nccl.warning})" if nccl.warning else ""
    return Entry(nccl.title, True, f"{nccl.path}{warning}")


def _mpi() -> Entry:
    try:
        # Loads the engine, which a launcher does without.
        from horovod._rank.libraries.mpi import find_library

        found = find_library()
    except ImportError:  # the engine's own line tells more
        found = None
    if found is None:
        return Entry("MPI", False, "no libmpi_abi.so (MPI 5) of the system, Python or mpirun")
    path, version = found
    return Entry("MPI (HOROVOD_CPU_OPERATIONS=mpi)", True, f"{path}, {version}")
