"""What ``horovodrun report-issue`` writes about this machine."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

import horovod
from horovod._settings import TABLE
from horovod._settings.setting import Setting, Status
from horovod.runner.checks.facts import Facts, collect_facts
from horovod.runner.issue.redaction import Redaction, values_to_remove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MOST_TAIL_BYTES = 32 * 1024
_DISTRIBUTIONS = (
    *("numpy", "tf_keras", "optax", "ray", "pyspark", "pyarrow", "lightning", "pytorch-ignite"),
    *("mpi4py", "psutil", "pydantic", "cloudpickle", "fsspec", "rich"),
)
# Others than Horovod's own whose values are numbers or words that explain a report.
_FURTHER = frozenset(
    (
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NCCL_DEBUG"),
        *("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "CUDA_VISIBLE_DEVICES", "KERAS_BACKEND"),
        *("TF_USE_LEGACY_KERAS", "JAX_PLATFORMS", "LANG", "LC_ALL", "TERM", "PYTHONHASHSEED"),
    )
)


def report(
    environ: Mapping[str, str], kept: Sequence[Path], logs: Sequence[tuple[str, str]]
) -> str:
    """Return the text of a report, without what is private.

    Args:
        environ: the variables of this process.
        kept: files of what was said at the end of the last jobs, the newest first.
        logs: name and end of each file that the user adds.
    """
    facts = collect_facts()
    redaction = _redaction(environ)
    sections = {
        "Versions": versions(facts),
        "Settings": settings(environ),
        "Machine": [*machine(facts), *interfaces()],
        "Last failures": list(_texts(kept)) or ["none was kept"],
        **{f"Added file {number}": [text] for number, (_, text) in enumerate(logs, 1)},
    }
    lines = [f"# Report about Horovod {horovod.__version__}"]
    for title, found in sections.items():
        text = redaction.apply("\n".join(found)).replace("```", "'''")
        lines += ["", f"## {title}", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def versions(facts: Facts) -> list[str]:
    """Return what is installed, one per line."""
    libc = " ".join(platform.libc_ver()).strip() or "unknown"
    lines = [
        f"Horovod {facts.horovod}",
        f"Python {facts.python} ({platform.python_implementation()})",
        f"kernel {platform.system()} {platform.release()} {platform.machine()}",
        f"libc {libc}",
        *(f"{name} {version}" for name, version in facts.frameworks.items()),
        f"engine: {facts.fault_of_engine or f'kernels for {facts.kernels}'}",
    ]
    for name in _DISTRIBUTIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            lines.append(f"{name} {importlib.metadata.version(name)}")
    return lines


def settings(environ: Mapping[str, str]) -> list[str]:
    """Return the variables in force: numbers and words with their value, others by name only."""
    lines = []
    for name in sorted(environ):
        row = TABLE.get(name)
        if name in _FURTHER or (row is not None and _is_plain(row, environ[name])):
            lines.append(f"{name}={environ[name]}")
        elif row is not None:
            lines.append(f"{name} is set")
    unknown = sum(name.startswith("HOROVOD_") and name not in TABLE for name in environ)
    if unknown:
        lines.append(f"{unknown} variables HOROVOD_… that are no settings")
    return lines or ["none is set"]


def _is_plain(row: Setting, value: str) -> bool:
    """Whether a value is a number or a known word; of all others, only the name is written."""
    if row.status is Status.PLACE or row.kind is str:
        return value.strip().lower() in row.words
    return row.kind in (bool, int, float) and len(value) <= 20


def machine(facts: Facts) -> list[str]:
    """Return cores, NUMA nodes, memory and limits, one per line."""
    memory = psutil.virtual_memory()
    lines = [
        f"{facts.cores} usable of {os.cpu_count()} cores ({_processor()})",
        f"{memory.total / 2**30:.1f} GiB of memory, {memory.available / 2**30:.1f} GiB available",
        f"at most {facts.descriptors} open files",
    ]
    nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    lines += [f"NUMA {node.name}: cores {_line_of(node / 'cpulist')}" for node in nodes]
    if facts.shared_memory_bytes is not None:
        lines.append(f"{facts.shared_memory_bytes / 2**30:.1f} GiB free in /dev/shm")
    quota = _line_of(Path("/sys/fs/cgroup/cpu.max"))
    if quota:
        lines.append(f"cgroup cpu.max: {quota}")
    if facts.fault_of_memfd:
        lines.append(f"memory cannot be shared: {facts.fault_of_memfd}")
    return lines


def interfaces() -> list[str]:
    """Return the network interfaces by number, without names and addresses."""
    try:
        found = psutil.net_if_stats()
    except OSError as error:
        return [f"network interfaces are unknown: {error.strerror}"]
    return [
        f"interface {number}: {_kind_of(name)}, {'up' if each.isup else 'down'}, "
        f"{each.speed or '?'} Mbit/s, MTU {each.mtu}"
        for number, (name, each) in enumerate(sorted(found.items()), 1)
    ]


def _kind_of(name: str) -> str:
    kinds = {"lo": "loopback", "e": "Ethernet", "ib": "InfiniBand", "w": "wireless"}
    for start, kind in kinds.items():
        if name.startswith(start):
            return kind
    return "virtual or other"


def _processor() -> str:
    with suppress(OSError), open("/proc/cpuinfo", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _line_of(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _texts(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        with suppress(OSError):
            yield f"{path.name[:16]}\n{path.read_text(errors='replace')}"


def _redaction(environ: Mapping[str, str]) -> Redaction:
    users = {environ.get("USER", ""), environ.get("LOGNAME", "")}
    with suppress(OSError, KeyError):
        users.add(getpass.getuser())
    homes = {environ.get("HOME", ""), os.path.expanduser("~")} - {"/", "~", ""}
    hosts = {socket.gethostname(), environ.get("HOSTNAME", ""), environ.get("HOROVOD_HOSTNAME", "")}
    is_known: Callable[[str], bool] = lambda name: (  # noqa: E731
        name in _FURTHER or (name in TABLE and _is_plain(TABLE[name], environ[name]))
    )
    ours = {*users, *homes, *hosts}  # these have names of their own
    values = values_to_remove(environ, is_known) - ours
    return Redaction(values, hosts, users - {"root"}, homes)
