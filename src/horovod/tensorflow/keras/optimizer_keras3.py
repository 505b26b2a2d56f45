"""The reduction of gradients by the optimizers of Keras 3."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.keras.reducing_optimizer import (
    CallableList,
    ReducingOptimizer,
    Wrapping,
    share_state,
    wrapped_class,
)
from horovod.tensorflow.keras_generation import keras_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
    from horovod.tensorflow.interface_types import Gradient, Optimizer, Variable


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
        this: Any = self
        grads = list(grads)
        if trainable_variables is None:
            variables = list(this._trainable_variables) if this.built else []
        else:
            variables = list(trainable_variables)
        if not grads or len(grads) != len(variables):
            plain.apply(grads, trainable_variables)  # which says what is wrong
            return
        _refuse_scaler()
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


def refuse_inner(optimizer: Optimizer) -> None:
    """Raises if an optimizer holds a wrapped one.

    Raises:
        UsageError: it does.
    """
    if isinstance(getattr(optimizer, "inner_optimizer", None), ReducingOptimizer):
        raise UsageError(_SCALER_REFUSAL)


def with_loss_scale(optimizer: ReducingOptimizer) -> ReducingOptimizer:
    """Puts a LossScaleOptimizer between the reduction and the optimizer.

    Whether a step is taken is decided there by whether all gradients are finite, so it has to see
    the reduced ones, which are alike on all ranks.
    """
    plain = share_state(optimizer, type(optimizer).plain_class)
    keras = keras_of(type(plain))
    scaler = keras.optimizers.LossScaleOptimizer(plain, name="loss_scale_optimizer")
    wrapping: Wrapping = optimizer.wrapping
    outer = share_state(scaler, wrapped_class(ReducingOptimizer3, type(scaler), wrapping))
    outer._reducer, outer._agg_helper = optimizer._reducer, optimizer._agg_helper
    wrapped: ReducingOptimizer = outer
    return wrapped


_SCALER_REFUSAL = (
    "a LossScaleOptimizer skips steps by the gradients of this rank alone if it holds a "
    "DistributedOptimizer; turn them around: "
    "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
)
_SCALER_MODULE = "keras.src.optimizers.loss_scale_optimizer"


def _refuse_scaler() -> None:
    """Raises if a plain LossScaleOptimizer calls: ranks would not reduce the same steps."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == _SCALER_MODULE:
            raise UsageError(_SCALER_REFUSAL)
        frame = frame.f_back  # type: ignore[assignment]
