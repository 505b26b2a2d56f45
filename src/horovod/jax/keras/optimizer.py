"""Optimizers of Keras on JAX, whose step may be a part of a jitted program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.optimizer_keras3 import ReducingOptimizer3
from horovod._keras.reducing_optimizer import CallableList
from horovod.errors import UsageError
from horovod.jax.keras.aggregation import TracedAggregation
from horovod.jax.keras.reducer import JaxReducer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod._keras.reducing_optimizer import Wrapping


class JaxReducingOptimizer(ReducingOptimizer3):
    """Reduces in ``apply``, which ``stateless_apply`` calls in the jitted step of ``fit``.

    The sums over several passes and the rounding errors are variables of the optimizer, so that the
    step carries them along with the others. A saved model is without them, and so loads without
    Horovod.
    """

    @property
    def variables(self) -> CallableList[Any]:
        """The variables of the optimizer; a list that can also be called."""
        held = CallableList(super().variables)
        helper = vars(self).get("_agg_helper")
        weight = getattr(vars(self).get("_reducer"), "weight", None)
        held += [] if helper is None else helper.variables
        errors = getattr(vars(self).get("_reducer"), "errors", None)
        held += [] if errors is None else errors.variables
        held += [] if helper is None else helper.controls
        # The controls and the weight are the last ones: an elastic training sets them.
        held += [] if weight is None else [weight]
        return held

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the variables of the optimizer.

        Args:
            variables: what it trains.
        """
        plain: Any = super()
        plain.build(variables)
        if self._agg_helper is not None:
            self._agg_helper.build(variables)
        self._build_errors(variables)

    def stateless_apply(
        self, optimizer_variables: Sequence[Any], grads: Iterable[Any], trainable_variables: Any
    ) -> Any:
        """Reduces the gradients, and returns what the variables become.

        Args:
            optimizer_variables: values of ``self.variables``.
            grads: of this rank.
            trainable_variables: values of the variables that the optimizer was built for.

        Raises:
            UsageError: see :meth:`apply`.
        """
        plain: Any = super()
        this: Any = self
        if hasattr(self, "inner_optimizer"):
            # This one applies gradients by its inner optimizer, not by its own method.
            self._refuse_passes()
            grads = self._allreduce(list(grads), this._trainable_variables)
        return plain.stateless_apply(optimizer_variables, grads, trainable_variables)

    def save_own_variables(self, store: Any) -> None:
        """Save the variables that the plain optimizer has, too."""
        for index, variable in enumerate(super().variables):
            store[str(index)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load what :meth:`save_own_variables` saved."""
        held = super().variables
        if len(store.keys()) != len(held):
            plain: Any = super()
            plain.load_own_variables(store)  # which says so
            return
        for index, variable in enumerate(held):
            variable.assign(store[str(index)])

    def _apply_every_nth(self, apply: Any, grads: Sequence[Any], variables: list[Any]) -> None:
        self._refuse_passes()
        super()._apply_every_nth(apply, grads, variables)

    def _begin(self) -> None:
        super()._begin()
        this: Any = self
        if self._agg_helper is not None and this.built:
            self._agg_helper.build(this._trainable_variables)
        if this.built:
            self._build_errors(this._trainable_variables)

    def _allreduce(self, grads: Iterable[Any], vars: Iterable[Any]) -> list[Any]:
        self._leave_errors()
        return super()._allreduce(grads, vars)

    def _build_errors(self, variables: Sequence[Any]) -> None:
        self._leave_errors()
        reducer: Any = self._reducer
        if reducer.errors is not None:
            reducer.errors.build(variables)

    def _leave_errors(self) -> None:
        """Have no errors beside a LossScaleOptimizer, whose step is to carry its own variables."""
        reducer: Any = self._reducer
        if hasattr(self, "inner_optimizer"):
            reducer.errors = None

    def _refuse_passes(self) -> None:
        if self._agg_helper is not None and hasattr(self, "inner_optimizer"):
            raise UsageError(
                "backward_passes_per_step with a LossScaleOptimizer, which mixed_float16 needs, is "
                "not possible with Keras on JAX: use mixed_bfloat16, or give the inner optimizer "
                "gradient_accumulation_steps"
            )


def begin(wrapping: Wrapping) -> tuple[JaxReducer, TracedAggregation | None]:
    """Make the reducer of an optimizer, and what adds its gradients up over several passes."""
    reducer = JaxReducer(wrapping.settings)
    if wrapping.passes == 1:
        return reducer, None
    return reducer, TracedAggregation(
        wrapping.passes, wrapping.average_aggregated_gradients, reducer
    )
