"""Whole training loops between real processes: each learns what one process would."""

from __future__ import annotations

from torch_scenarios import SCENARIOS, Job, train_scenarios
from torch_training import check_equal

import horovod


def test_scenarios() -> None:
    # All in one job, as starting one takes longer than they do.
    everyones = horovod.run(train_scenarios, (list(SCENARIOS),), num_proc=2)
    for name, (train, tolerance) in SCENARIOS.items():
        check_equal([mine[name] for mine in everyones], train(Job(range(2))), tolerance)
