"""What a process may keep busy, given the files that describe its control groups."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from horovod._rank.cores import computing_cores, usable_cores

if TYPE_CHECKING:
    from pathlib import Path

CORES = 8


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        pytest.param({}, CORES, id="no control groups"),
        pytest.param(
            {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "max 100000\n"},
            CORES,
            id="no quota",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"},
            2,
            id="a container: two and a half cores",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"},
            1,
            id="half a core",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1600000 100000\n"},
            CORES,
            id="more than there are",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
                "sys/fs/cgroup/slurm/job_7/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "600000 100000\n",
                "sys/fs/cgroup/slurm/cpu.max": "max 100000\n",
            },
            3,
            id="the least of the groups above",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4,
            id="version 1, in a container that sees its group as the topmost",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpuset:/\n3:cpu:/job\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            },
            CORES,
            id="version 1 without a quota",
        ),
    ],
)
def test_the_cores_that_a_process_may_keep_busy(
    files: dict[str, str], cores: int, tmp_path: Path
) -> None:
    assert usable_cores(write(tmp_path, files)) == cores


def test_one_core_that_it_may_run_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert usable_cores(tmp_path) == 1


def with_two_threads_per_core(root: Path) -> Path:
    """The hardware threads 0 and 4, 1 and 5, ... share a core."""
    folder = "sys/devices/system/cpu"
    return write(
        root,
        {
            f"{folder}/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}\n"
            for cpu in range(CORES)
        },
    )


def test_hardware_threads_of_a_core_compute_as_one(tmp_path: Path) -> None:
    root = with_two_threads_per_core(tmp_path)
    assert computing_cores(root) == 4
    assert usable_cores(root) == CORES


def test_hardware_threads_of_different_cores_compute_as_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 4})
    assert computing_cores(with_two_threads_per_core(tmp_path)) == 3


def test_a_quota_counts_for_computing_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"},
    )
    assert computing_cores(tmp_path) == 2


def test_where_nothing_tells_of_hardware_threads_each_counts(tmp_path: Path) -> None:
    assert computing_cores(tmp_path) == CORES
