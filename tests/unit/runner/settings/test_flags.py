from __future__ import annotations

from typing import Any

import pytest

from horovod.errors import UsageError
from horovod.runner.settings.flags import FLAGS, variables_of


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


def test_no_flag_sets_no_variable() -> None:
    assert variables_of({}) == {}


def test_each_flag_has_a_name_of_its_own() -> None:
    attributes = {flag.attribute for flag in FLAGS}
    assert len(attributes) == len(FLAGS)
    assert all(flag.needs.replace("-", "_") in attributes for flag in FLAGS if flag.needs)
