"""Derivatives, training and all else that programs for JAX may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax_output import said_by

if TYPE_CHECKING:
    from collections.abc import Callable

DERIVATIVES = (
    "every_operation_has_its_tangent_and_its_adjoint",
    "tangents_are_those_of_finite_differences",
    "uneven_parts_have_their_adjoints",
    "second_derivatives_and_programs_of_all_kinds",
    "a_batch_is_one_operation",
    "integers_in_a_tree_have_no_derivative",
)
TRAINING = (
    "an_optimizer_equals_one_process",
    "functions_of_all_ranks_equal_one_process",
    "several_passes_equal_one_process",
    "bfloat16_and_compression",
    "batch_statistics_equal_one_process",
)
OTHERS = (
    "a_tree_of_all_dtypes_is_one_operation",
    "independent_operations_run_in_the_order_of_the_program",
    "uneven_batches_never_swap_names",
    "what_cannot_be_sent_is_refused",
    "what_cannot_be_in_a_program_is_refused",
    "state_comes_from_the_root",
    "replicas_that_differ_are_named",
    "a_weight_may_be_computed",
    "a_failed_program_says_what_differs_and_others_go_on",
)
THREE = (DERIVATIVES[0], TRAINING[1])


def test_all_cases_on_two_ranks(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "jax_cases_rank.py")
    assert job.returncode == 0, job.stdout + job.stderr
    assert said_by(job, 0) == said_by(job, 1) == [*DERIVATIVES, *TRAINING, *OTHERS]


def test_derivatives_and_training_on_three_ranks(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(3, "jax_cases_rank.py", *THREE)
    assert job.returncode == 0, job.stdout + job.stderr
    assert said_by(job, 2) == [*THREE]
