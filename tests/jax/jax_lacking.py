"""What the interface for JAX lacks or has otherwise, and so is not run, with the reason."""

from __future__ import annotations

_NO_HANDLES = "JAX's interface has no handles"
_ADJOINTS = "derivatives are the exact adjoints (tests/jax/jax_derivatives.py)"
_NO_ORDER = "starts operations without a name, and threads have no order"

LACKING = {
    "a_handle_says_when_its_operation_is_done": _NO_HANDLES,
    "a_handle_is_used_up_by_synchronize": _NO_HANDLES,
    "a_failed_operation_is_done_and_raises_once": _NO_HANDLES,
    "each_operation_returns_its_kind": _NO_HANDLES,
    "handles_can_be_awaited_in_any_order": _NO_HANDLES,
    "a_name_in_flight_is_refused_and_the_first_goes_on": _NO_HANDLES,
    "gradients_flow_through_every_operation": _ADJOINTS,
    "gradient_of_allgather_is_that_of_the_own_rows": _ADJOINTS,
    "gradients_flow_within_the_set": _ADJOINTS,
    "operations_in_place_return_the_tensor_itself": "JAX's arrays cannot change",
    "the_frameworks_own_product_and_quotient_are_the_same": (
        "XLA multiplies by the reciprocal instead of dividing"
    ),
    "groups_may_hold_anything_but_nothing": "an empty list is returned as it is",
    "operations_of_all_kinds_run_together": _NO_ORDER,
    "sets_come_and_go_while_operations_are_in_flight": _NO_ORDER,
    "a_device_that_is_not_there_is_passed_over": "join() has no argument for it",
}


def lacking() -> set[str]:
    """The names of all checks that are not run."""
    return {*LACKING}
