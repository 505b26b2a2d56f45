"""Derivatives, training and all else that programs for JAX may do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from environments import said_by

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent
DERIVATIVES = (
    "every_operation_has_its_tangent_and_its_adjoint",
    "tangents_are_those_of_finite_differences",
    "uneven_parts_have_their_adjoints",
    "second_derivatives_and_programs_of_all_kinds",
    "a_function_with_derivatives_of_its_own_communicates",
    "programs_over_one_device_communicate",
    "a_batch_is_one_operation",
    "integers_in_a_tree_have_no_derivative",
)
TRAINING = (
    "an_optimizer_equals_one_process",
    "functions_of_all_ranks_equal_one_process",
    "every_leaf_of_a_gradient_is_reduced",
    "passes_outside_of_jit_compile_nothing_again",
    "gradients_without_values_pass_several_passes",
    "copies_of_an_optimizer_reduce",
    "bfloat16_and_compression",
    "batch_statistics_equal_one_process",
)
SHARES = (
    "shares_equal_a_whole_state",
    "a_rank_keeps_its_part",
    "options_of_shares_are_honored",
    "passes_end_in_a_step_of_shares",
    "halves_keep_their_dtype",
    "a_checkpoint_fits_any_number_of_ranks",
    "a_commit_keeps_all_of_an_attribute_with_shares",
    "what_shares_cannot_do_is_refused",
)
LOCAL_STEPS = (
    "local_steps_are_those_of_the_papers",
    "fragments_take_turns",
    "synchronize_makes_all_ranks_equal",
    "a_checkpoint_of_local_steps_goes_on_bit_by_bit",
    "local_steps_begin_with_the_same_parameters",
    "a_joined_rank_has_changed_nothing",
    "newcomers_take_the_outer_state",
    "halves_have_outer_parameters_of_float32",
    "hosts_may_take_local_steps",
    "outer_parameters_are_compared",
    "wrong_local_steps_are_refused",
)
OTHERS = (
    "logged_values_are_averaged",
    "norms_are_those_of_reduced_gradients",
    "a_tree_of_all_dtypes_is_one_operation",
    "independent_operations_run_in_the_order_of_the_program",
    "uneven_batches_never_swap_names",
    "what_cannot_be_sent_is_refused",
    "what_cannot_be_in_a_program_is_refused",
    "state_comes_from_the_root",
    "trees_that_differ_are_named",
    "integers_of_numpy_are_not_cut",
    "what_keeps_an_order_of_its_own_is_broadcast_by_its_paths",
    "a_weight_may_be_computed",
    "a_failed_program_says_what_differs_and_others_go_on",
)
THREE = (DERIVATIVES[0], TRAINING[1], SHARES[1], SHARES[5], LOCAL_STEPS[0])


# Jobs of their own: each compiles many programs.
@pytest.mark.parametrize(
    "cases",
    [DERIVATIVES, TRAINING, OTHERS, SHARES, LOCAL_STEPS],
    ids=["derivatives", "training", "others", "shares", "local steps"],
)
def test_all_cases_on_two_ranks(cases: tuple[str, ...], run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, "jax_cases_rank.py", *cases)
    assert job.returncode == 0, job.stdout + job.stderr
    assert said_by(job, 0) == said_by(job, 1) == [*cases]


def test_derivatives_and_training_on_three_ranks(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(3, "jax_cases_rank.py", *THREE)
    assert job.returncode == 0, job.stdout + job.stderr
    assert said_by(job, 2) == [*THREE]


def test_no_case_is_left_out(run_python: Callable[..., Any]) -> None:
    names = "[case.__name__ for each in (d, t, o, s, l) for case in each.CASES]"
    modules = "jax_derivatives as d, jax_training as t, jax_cases as o, jax_shares as s"
    modules += ", jax_local_steps as l"
    program = f"import {modules}; print(*{names})"
    job = run_python("-c", f"import sys; sys.path.append({str(FOLDER)!r}); {program}")
    assert job.stdout.split() == [*DERIVATIVES, *TRAINING, *OTHERS, *SHARES, *LOCAL_STEPS], (
        job.stderr
    )
