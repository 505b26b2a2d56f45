from __future__ import annotations

from typing import Any

import pytest

from horovod.errors import UsageError
from horovod.runner.cli.options import parse
from horovod.runner.settings.flags import FLAGS, variables_of


def variables(*words: str) -> dict[str, str]:
    return variables_of(vars(parse([*words, "command"]).values))


def test_no_flag_sets_no_variable() -> None:
    assert variables() == {}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--fusion-threshold-mb 10", {"HOROVOD_FUSION_THRESHOLD": "10485760"}),
        ("--cycle-time-ms 20", {"HOROVOD_CYCLE_TIME": "20.0"}),
        ("--cache-capacity 512", {"HOROVOD_CACHE_CAPACITY": "512"}),
        ("--hierarchical-allreduce", {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}),
        ("--no-hierarchical-allgather", {"HOROVOD_HIERARCHICAL_ALLGATHER": "0"}),
        ("--no-torus-allreduce", {"HOROVOD_TORUS_ALLREDUCE": "0"}),
        ("--autotune-log-file x", {}),
        ("--no-autotune --autotune-log-file x", {"HOROVOD_AUTOTUNE": "0"}),
        (
            "--autotune --autotune-log-file x --autotune-gaussian-process-noise 0.5",
            {
                "HOROVOD_AUTOTUNE": "1",
                "HOROVOD_AUTOTUNE_LOG": "x",
                "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.5",
            },
        ),
        ("--timeline-mark-cycles", {}),
        (
            "--timeline-filename t.json --timeline-mark-cycles",
            {"HOROVOD_TIMELINE": "t.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1"},
        ),
        ("--no-stall-check", {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        ("--stall-check", {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        (
            "--stall-check-warning-time-seconds 10 --stall-check-shutdown-time-seconds 20",
            {
                "HOROVOD_STALL_CHECK_TIME_SECONDS": "10",
                "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20",
            },
        ),
        ("--mpi-threads-disable", {"HOROVOD_MPI_THREADS_DISABLE": "1"}),
        ("--num-nccl-streams 2", {"HOROVOD_NUM_NCCL_STREAMS": "2"}),
        ("--num-streams 4", {"HOROVOD_NUM_STREAMS": "4"}),
        ("--thread-affinity 1", {"HOROVOD_THREAD_AFFINITY": "1"}),
        ("--thread-affinity 0,2", {"HOROVOD_THREAD_AFFINITY": "0,2"}),
        ("--gloo-timeout-seconds 60", {"HOROVOD_GLOO_TIMEOUT_SECONDS": "60"}),
        ("--log-level INFO", {"HOROVOD_LOG_LEVEL": "INFO"}),
        ("--log-with-timestamp", {"HOROVOD_LOG_HIDE_TIME": "0"}),
        ("--log-without-timestamp", {"HOROVOD_LOG_HIDE_TIME": "1"}),
        ("--log-hide-timestamp", {"HOROVOD_LOG_HIDE_TIME": "1"}),
        ("--no-log-hide-timestamp -prefix-timestamp", {"HOROVOD_LOG_HIDE_TIME": "0"}),
    ],
)
def test_flags_become_variables(words: str, expected: dict[str, str]) -> None:
    assert variables(*words.split()) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fusion_threshold_mb": -1}, "--fusion-threshold-mb is -1, but must be at least 0"),
        ({"num_streams": 0}, "--num-streams is 0, but must be at least 1"),
        ({"cycle_time_ms": float("nan")}, "--cycle-time-ms is nan"),
        ({"autotune_gaussian_process_noise": 1.5}, "between 0 and 1"),
        (
            {"stall_check_warning_time_seconds": 9, "stall_check_shutdown_time_seconds": 9},
            "must exceed",
        ),
    ],
)
def test_bounds(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        variables_of(values)


def test_each_flag_has_its_own_variable() -> None:
    assert len({flag.variable for flag in FLAGS}) == len(FLAGS)
    attributes = {flag.attribute for flag in FLAGS}
    assert all(flag.needs in attributes for flag in FLAGS if flag.needs)
