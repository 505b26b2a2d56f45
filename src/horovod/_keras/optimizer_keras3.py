"""The reduction of gradients by the optimizers of Keras 3 on JAX and PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.loss_scale import refuse_scaler
from horovod._keras.reducing_optimizer import CallableList, ReducingOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class ReducingOptimizer3(ReducingOptimizer):
    """Reduces in ``apply``.

    Keras 3 updates variables there alone, whether a script calls it, ``apply_gradients``,
    ``stateless_apply`` or ``model.fit``. So gradients are reduced before they are clipped or
    scaled.
    """

    @property
    def variables(self) -> CallableList[Any]:
        """The variables of the optimizer; a list that can also be called."""
        return CallableList(super().variables)  # type: ignore[misc]  # of the plain class

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Reduces the gradients, then updates the variables.

        Args:
            grads: of this rank; all ranks must call with gradients of the same variables.
            trainable_variables: to which they belong; those of the last ``build`` if None.

        Raises:
            UsageError: the process set is not registered, or a LossScaleOptimizer holds this
                optimizer.
        """
        plain: Any = super()
        this: Any = self
        grads = list(grads)
        variables = self._variables_of(grads, trainable_variables)
        if variables is None:
            plain.apply(grads, trainable_variables)  # which says what is wrong
            return
        refuse_scaler()
        if self._agg_helper is None:
            plain.apply(self._allreduce(grads, variables), variables)
            return
        if not this.built:
            this.build(variables)
        self._apply_every_nth(plain.apply, grads, variables)

    def _apply_every_nth(
        self,
        apply: Callable[[Sequence[Any], Sequence[Any]], None],
        grads: Sequence[Any],
        variables: list[Any],
    ) -> None:
        self._agg_helper.step(self, apply, grads, variables)
