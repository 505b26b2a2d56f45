"""Reads what the kernel counts for this process, its cgroup and its host."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from horovod._rank.cores import usable_cores

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_THERMAL = "/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"


def read_usage() -> dict[str, Any]:
    """Return counters by the names of :class:`horovod._rendezvous.observed.Observed`.

    What this kernel or container does not tell is 0.
    """
    status = _lines("/proc/self/status")
    return {
        "cpu_s": time.process_time(),
        "run_delay_s": _run_delay_s(),
        "throttled_s": _throttled_s(),
        "steal_s": _steal_s(),
        "major_faults": _major_faults(),
        "thermal_events": _number(_read(_THERMAL)),
        "network_bytes": sum(read_network_bytes()),
        "memory_bytes": _kilobytes(status.get("VmRSS", "")),
        "swapped_bytes": _kilobytes(status.get("VmSwap", "")),
        "threads": _number(status.get("Threads", "")),
        "cores": float(usable_cores()),
    }


def _read(path: str) -> str:
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read()
    return ""


def _lines(path: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in _read(path).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _number(text: str) -> int:
    text = text.strip()
    return int(text) if text.isdecimal() else 0


def _kilobytes(text: str) -> int:
    return 1024 * _number(text.partition(" ")[0])


def _run_delay_s() -> float:
    """Of all threads: the main one may sleep while those of a library wait for a processor."""
    total_ns = 0
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            words = _read(f"/proc/self/task/{thread}/schedstat").split()
            total_ns += _number(words[1]) if len(words) > 1 else 0
    return total_ns / 1e9


def _throttled_s() -> float:
    group = next(
        (line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), ""
    )
    for path in (f"/sys/fs/cgroup{group}/cpu.stat", "/sys/fs/cgroup/cpu.stat"):
        for line in _read(path).splitlines():
            name, _, value = line.partition(" ")
            if name == "throttled_usec":
                return _number(value) / 1e6
    return 0.0


def _steal_s() -> float:
    words = _read("/proc/stat").partition("\n")[0].split()
    return _number(words[8]) / _TICKS_PER_S if len(words) > 8 else 0.0


def _major_faults() -> int:
    # Behind the name of the program, which may have blanks and brackets itself.
    words = _read("/proc/self/stat").rpartition(")")[2].split()
    return _number(words[9]) if len(words) > 9 else 0


def read_network_bytes() -> tuple[int, int]:
    """Return the bytes that this host has received and sent; 0 if the kernel does not tell."""
    return network_bytes(_read("/proc/self/net/dev"))


def network_bytes(text: str, classes: str = "/sys/class/net") -> tuple[int, int]:
    """Return the bytes received, and those sent, each of them once.

    What crosses a bond, a bridge or a VLAN is also counted by the interfaces below it, and what a
    container sends by the adapter that it leaves by. So adapters count alone; where there are none,
    as in most containers, all interfaces do that have none below them. A container that has been
    given an adapter beside its virtual interface is taken for a host.

    Args:
        text: of ``/proc/net/dev``.
        classes: the folder in which the kernel describes the interfaces.
    """
    moved = {}
    for line in text.splitlines():
        name, colon, numbers = line.partition(":")
        words = numbers.split()
        if colon and name.strip() != "lo" and len(words) > 8:
            moved[name.strip()] = _number(words[0]), _number(words[8])
    adapters = [name for name in moved if os.path.exists(f"{classes}/{name}/device")]
    counted = [moved[each] for each in adapters or moved if not _is_above(f"{classes}/{each}")]
    return sum(received for received, _ in counted), sum(sent for _, sent in counted)


def _is_above(interface: str) -> bool:
    with suppress(OSError):
        return any(each.startswith("lower_") for each in os.listdir(interface))
    return False
