"""What the interface for MXNet lacks, and so is not run, with the reason."""

from __future__ import annotations

_NO_HANDLES = "MXNet's interface has no handles"
_NO_GRADIENTS = "MXNet's autograd knows nothing of collectives"
_NO_ORDER = "starts operations without a name, and threads have no order"
_NO_WEIGHT = "MXNet's functions take no weight"
_RUNS_LATER = "a name may be taken when MXNet runs the operation, not when it is called"

LACKING = {
    "a_handle_says_when_its_operation_is_done": _NO_HANDLES,
    "a_handle_is_used_up_by_synchronize": _NO_HANDLES,
    "a_failed_operation_is_done_and_raises_once": _NO_HANDLES,
    "each_operation_returns_its_kind": _NO_HANDLES,
    "gradients_flow_through_every_operation": _NO_GRADIENTS,
    "gradient_of_allgather_is_that_of_the_own_rows": _NO_GRADIENTS,
    "gradients_flow_within_the_set": _NO_GRADIENTS,
    "gradients_of_compressed_reductions_keep_their_dtype": _NO_GRADIENTS,
    "reductions_may_be_compressed": "trainers compress, functions take no compression",
    "a_name_in_flight_is_refused_and_the_first_goes_on": _RUNS_LATER,
    "groups_may_hold_anything_but_nothing": "an empty list is returned as it is",
    "alltoall_counts_more_rows_than_int32_holds": "no dimension is empty",
    "operations_of_all_kinds_run_together": _NO_ORDER,
    "sets_come_and_go_while_operations_are_in_flight": _NO_ORDER,
    "a_device_that_is_not_there_is_passed_over": "join() has no argument for it",
    "averages_can_divide_by_those_that_have_not_joined": "join() has no argument for it",
    "weights_count_as_often_as_they_say": _NO_WEIGHT,
    "a_weight_may_be_zero_but_not_all": _NO_WEIGHT,
    "large_halves_do_not_overflow_on_the_way": _NO_WEIGHT,
    "weights_that_make_no_sense_are_refused": _NO_WEIGHT,
    "weighted_averages_leave_out_the_joined": _NO_WEIGHT,
}

LACKING_IF_NAIVE = {
    "handles_can_be_awaited_in_any_order": _NO_ORDER,
}
"""With NaiveEngine each operation is waited for where it is called."""


def lacking(is_naive: bool) -> set[str]:
    """The names of all checks that are not run."""
    return {*LACKING, *(LACKING_IF_NAIVE if is_naive else ())}
