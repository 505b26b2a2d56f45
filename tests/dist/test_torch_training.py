"""Training with horovod.torch between real processes."""

from __future__ import annotations

import torch
from torch_training import RECIPES, check_equal, train_alone, train_many, train_through_a_restart

import horovod


def test_training_is_that_of_one_process_with_all_data() -> None:
    everyones = horovod.run(train_many, (list(RECIPES),), num_proc=2)
    for name, (recipe, tolerance) in RECIPES.items():
        check_equal([mine[name] for mine in everyones], train_alone(2, recipe), tolerance)


def test_training_goes_on_in_a_new_job_of_the_same_processes() -> None:
    (message, first), (_, second) = horovod.run(train_through_a_restart, num_proc=2)
    assert "rank 1" in message
    assert all(map(torch.equal, first, second))
