"""The reduction of gradients by the optimizers of Keras 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.loss_scale import refuse_inner, refuse_scaler
from horovod._keras.reducing_optimizer import CallableList, ReducingOptimizer
from horovod.tensorflow.autograph import as_written

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
    from horovod.tensorflow.interface_types import Gradient, Optimizer, Variable

__all__ = ["ReducingOptimizer3", "reducing_class", "refuse_inner"]


class ReducingOptimizer3(ReducingOptimizer):
    """Reduces in ``apply``.

    Keras 3 updates variables there alone, whether a script calls it, ``apply_gradients`` or
    ``model.fit``. So gradients are reduced before they are clipped or scaled.
    """

    @property
    def variables(self) -> CallableList[Any]:
        """The variables of the optimizer; a list that can also be called."""
        return CallableList(super().variables)  # type: ignore[misc]  # of the plain class

    @as_written
    def apply(
        self, grads: Iterable[Gradient], trainable_variables: Iterable[Variable] | None = None
    ) -> None:
        """Reduces the gradients, then updates the variables.

        Args:
            grads: of this rank; all ranks must call with gradients of the same variables.
            trainable_variables: to which they belong; those of the last ``build`` if None.

        Raises:
            UsageError: the process set is not registered, XLA would have to compile this, or a
                LossScaleOptimizer holds this optimizer.
        """
        plain: Any = super()
        grads = list(grads)
        variables = self._variables_of(grads, trainable_variables)
        if variables is None:
            plain.apply(grads, trainable_variables)  # which says what is wrong
            return
        refuse_scaler()
        if self._agg_helper is None:
            plain.apply(self._allreduce(grads, variables), variables)
        else:
            self._apply_every_nth(self._agg_helper, grads, variables)

    def _apply_every_nth(
        self,
        helper: LocalGradientAggregationHelperEager,
        grads: Sequence[Any],
        variables: list[Any],
    ) -> None:
        plain: Any = super()
        this: Any = self
        if not this.built:
            # Not in a branch of the graph, where no variables can be made.
            this.build(variables)
        reached = helper.compute_gradients(grads, variables)
        helper.apply_gradients(lambda: plain.apply(reached, variables), self)


def reducing_class(optimizer: Optimizer) -> type[ReducingOptimizer]:
    """Return the class to put in front of the class of an optimizer.

    Raises:
        UsageError: it cannot be wrapped.
    """
    return ReducingOptimizer3
