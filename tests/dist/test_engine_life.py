"""Engines come and go in one process, and cost nothing while idle."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from typing import Any

import pytest

import horovod


def _counts() -> dict[str, int]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shared memory": _num_shared_mappings(),
    }


def _num_shared_mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("/dev/shm/" in line or "/memfd:" in line for line in maps)


def _counts_after(before: dict[str, int]) -> dict[str, int]:
    """A thread of Python's that was joined is listed for a moment longer, also in `before`."""
    until_s = time.monotonic() + 5.0
    counts = _counts()
    while counts["threads"] > before["threads"] and time.monotonic() < until_s:
        time.sleep(0.01)
        counts = _counts()
    return counts


def _many_rounds(num_rounds: int) -> dict[str, Any]:
    import numpy as np

    from horovod._native import Buffer
    from horovod._rank import context

    values = np.ones(50_000, np.float32)

    def round_trip() -> None:
        context.init()
        buffer = Buffer.from_array(values)
        context.global_group().allreduce([buffer], [buffer], name="x").wait(30)
        context.shutdown()

    for _ in range(20):
        round_trip()
    before, memory_before = _counts(), _resident_kib()
    for _ in range(num_rounds):
        round_trip()
    return {
        "before": before,
        "after": _counts_after(before),
        "grown_kib": _resident_kib() - memory_before,
        "average": float(values.max()),
    }


def _resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def test_200_rounds_of_init_and_shutdown_leave_nothing_behind() -> None:
    results = horovod.run(_many_rounds, (200,), num_proc=2)
    for result in results:
        before, after = result["before"], result["after"]
        assert after.pop("threads") <= before.pop("threads"), result
        assert after == before
        assert result["grown_kib"] < 2048, result
        assert result["average"] == 1.0


def _idle_cpu_s(seconds: float) -> float:
    from horovod._rank import context

    context.init()
    context.global_group().barrier().wait(30)
    before = time.process_time()
    threading.Event().wait(seconds)
    used = time.process_time() - before
    context.global_group().barrier().wait(30)
    context.shutdown()
    return used


@pytest.mark.slow
def test_an_idle_engine_uses_no_cpu() -> None:
    seconds = 10.0
    for used in horovod.run(_idle_cpu_s, (seconds,), num_proc=2):
        assert used < 0.001 * seconds


def _waiting_cpu_s(seconds: float) -> float:
    from horovod._rank import context

    context.init()
    context.global_group().barrier().wait(30)
    before = time.process_time()
    if context.rank() == 0:
        threading.Event().wait(seconds)
    context.global_group().barrier().wait(60)
    used = time.process_time() - before
    context.shutdown()
    return used


@pytest.mark.slow
def test_ranks_that_wait_for_another_one_use_little_cpu() -> None:
    seconds = 10.0
    for used in horovod.run(_waiting_cpu_s, (seconds,), num_proc=4):
        assert used < 0.01 * seconds


def _fork_a_child() -> tuple[int, float]:
    import numpy as np

    from horovod._native import Buffer
    from horovod._rank import context
    from horovod._rank.reduction import PLAIN_SUM

    context.init()
    child = os.fork()
    if child == 0:
        # Its descriptors are closed, Horovod is not initialized in it, and it ends as usual.
        sys.exit(7 if context.is_initialized() else 3)
    _, status = os.waitpid(child, 0)
    values = np.ones(100)
    buffer = Buffer.from_array(values)
    context.global_group().allreduce([buffer], [buffer], PLAIN_SUM, name="x").wait(30)
    context.shutdown()
    return os.waitstatus_to_exitcode(status), float(values[0])


def test_a_forked_child_leaves_the_job_alone() -> None:
    assert horovod.run(_fork_a_child, num_proc=2) == [(3, 2.0), (3, 2.0)]
