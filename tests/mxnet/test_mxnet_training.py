"""Old scripts train as ever: with trainers and modules, and with what else they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from environments import said_by

if TYPE_CHECKING:
    from collections.abc import Callable

OF_TRAINING = (
    "a_trainer_equals_one_process",
    "a_trainer_that_accumulates_equals_one_process",
    "a_module_equals_one_process",
)
OTHERS = (
    "old_scripts_find_every_argument_in_its_place",
    "gradients_come_in_any_order",
    "logged_values_are_averaged",
    "priorities_are_handed_on",
    "arrays_may_go_at_once",
    "what_was_computed_before_is_waited_for",
    "arrays_of_the_other_interface_stay_what_they_are",
    "two_trainers_and_compression",
    "a_copied_optimizer_averages_and_a_pickled_one_says_that_it_does_not",
    "a_deferred_parameter_is_sent_in_the_first_pass",
    "members_and_others",
    "states_of_a_network_and_its_trainer",
    "a_file_of_a_commit_brings_a_trainer_back",
    "a_hybridized_network_with_convolutions_trains",
    "wrong_arguments_are_explained",
)


def test_all_cases_on_two_ranks(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "mxnet_cases_rank.py")
    assert job.returncode == 0, job.stdout + job.stderr
    assert said_by(job, 0) == said_by(job, 1) == [*OF_TRAINING, *OTHERS]


def test_training_on_three_ranks_and_in_the_order_of_the_program(
    run_ranks: Callable[..., Any],
) -> None:
    job = run_ranks(3, "mxnet_cases_rank.py", *OF_TRAINING, MXNET_ENGINE_TYPE="NaiveEngine")
    assert job.returncode == 0, job.stdout + job.stderr
    assert said_by(job, 2) == [*OF_TRAINING]
