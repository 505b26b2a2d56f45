"""The number of cores that this process may keep busy.

https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files and
https://docs.kernel.org/scheduler/sched-bwc.html describe the quotas.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def usable_cores(root: Path = Path("/")) -> int:
    """The cores that this process may keep busy at the same time; at least 1.

    These are the cores that it may run on, or fewer if a control group that it is in has a quota
    of CPU time (``docker --cpus``, a limit of Kubernetes). Whoever uses that up stands still for
    the rest of the period, and with it all other processes of the group.

    Args:
        root: of the file system that describes the control groups.
    """
    cores = [float(len(os.sched_getaffinity(0))), *_quotas(root)]
    return max(1, int(min(cores)))


def computing_cores(root: Path = Path("/")) -> int:
    """Return :func:`usable_cores`, but count the hardware threads of one core once.

    They share its arithmetic units, so a library that computes gains nothing from the second one.

    Args:
        root: of the file system that describes control groups and processors.
    """
    siblings = {_siblings(root, cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, int(min([float(len(siblings)), *_quotas(root)])))


def _siblings(root: Path, cpu: int) -> str:
    """The hardware threads of the core of one of them; alike for all of these."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    try:
        return (topology / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quotas(root: Path) -> Iterator[float]:
    """The quotas of the control groups that this process is in, in cores."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            yield from _quotas_above(root / "sys/fs/cgroup", group, _quota)
        elif "cpu" in controllers.split(","):
            yield from _quotas_above(root / "sys/fs/cgroup/cpu", group, _quota_v1)


def _quotas_above(mount: Path, group: str, quota: Callable[[Path], float]) -> Iterator[float]:
    """Yield quotas of a group and those above it. A container may see its own as the topmost."""
    path = PurePosixPath(group.lstrip("/"))
    for each in (path, *path.parents):
        try:
            yield quota(mount / each)
        except (OSError, ValueError):  # no such group here, or it has no quota
            continue


def _quota(group: Path) -> float:
    """Raises ValueError for "max": there is none."""
    quota_us, period_us = (group / "cpu.max").read_text().split()
    return int(quota_us) / int(period_us)


def _quota_v1(group: Path) -> float:
    quota_us = int((group / "cpu.cfs_quota_us").read_text())
    if quota_us < 0:
        raise ValueError("there is none")
    return quota_us / int((group / "cpu.cfs_period_us").read_text())
