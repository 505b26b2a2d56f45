"""Optimizers of tf.compat.v1 whose gradients are reduced over all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._rank import context
from horovod._train.gradients import check_passes
from horovod._train.reduce_op import Adasum
from horovod.errors import UsageError
from horovod.tensorflow.delta_optimizer import DistributedDeltaOptimizer
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradient_reducer import GradientReducer
from horovod.tensorflow.reduction_settings import make_settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Unpack

    from horovod._train.optimizer_options import ReductionOptions
    from horovod.tensorflow.interface_types import Pair, V1Optimizer, Variable
    from horovod.tensorflow.reduction_settings import ReductionSettings


def wrap_v1_optimizer(
    optimizer: V1Optimizer,
    name: str | None = None,
    use_locking: bool = False,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    **options: Unpack[ReductionOptions],
) -> DistributedV1Optimizer | DistributedDeltaOptimizer:
    """Wraps an optimizer of tf.compat.v1.

    Args:
        optimizer: any of tf.compat.v1.train.
        name: of the result; None for that of the class after Distributed or DistributedDelta.
        use_locking: as of the base class.
        backward_passes_per_step: over how many passes gradients are added up before they are
            reduced; with Adasum, how many steps are taken before they are combined.
        average_aggregated_gradients: divide these sums by the number of passes.
        **options: see :class:`horovod._train.optimizer_options.ReductionOptions`.

    Raises:
        UsageError: the arguments are wrong.
    """
    check_passes(backward_passes_per_step)
    settings = make_settings(
        name or f"Distributed{type(optimizer).__name__}", stacklevel=5, **options
    )
    if settings.op is not Adasum:
        return DistributedV1Optimizer(
            optimizer, settings, use_locking, backward_passes_per_step, average_aggregated_gradients
        )
    if average_aggregated_gradients:
        raise UsageError(
            "average_aggregated_gradients does not go with op=Adasum, which adds up no gradients"
        )
    return DistributedDeltaOptimizer(
        optimizer,
        name,
        use_locking,
        settings.device_dense,
        settings.device_sparse,
        settings.compression,
        backward_passes_per_step,
        settings.process_set,
    )


class DistributedV1Optimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Steps by the gradients of all ranks; made by ``hvd.DistributedOptimizer``.

    Args:
        optimizer: any of tf.compat.v1.train.
        settings: how gradients are reduced.
        use_locking: as of the base class.
        passes: over how many passes gradients are added up before they are reduced.
        averages: divide these sums by the number of passes.

    Raises:
        UsageError: there are several passes in eager mode.
    """

    def __init__(
        self,
        optimizer: V1Optimizer,
        settings: ReductionSettings,
        use_locking: bool = False,
        passes: int = 1,
        averages: bool = False,
    ) -> None:
        super().__init__(name=settings.name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reducer = GradientReducer(settings)
        self._aggregation: LocalGradientAggregationHelper | None = None
        if passes == 1:
            return
        if tf.executing_eagerly():
            raise UsageError(
                f"backward_passes_per_step={passes} with an optimizer of tf.compat.v1 works in "
                "graphs only; use an optimizer of Keras in eager mode"
            )
        self._aggregation = LocalGradientAggregationHelper(
            backward_passes_per_step=passes,
            allreduce_func=self._reducer.reduce,
            sparse_as_dense=settings.sparse_as_dense,
            average_aggregated_gradients=averages,
            rank=context.rank(),
            optimizer_type=LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY,
            process_set=settings.process_set,
            name=settings.name,
        )

    def register_local_var(self, var: Variable) -> None:
        """Keeps the gradient of a variable on this rank; call it before ``compute_gradients``.

        It is divided by the number of ranks, unless ``scale_local_gradients=False`` was given.
        """
        self._reducer.register_local(var)

    def compute_gradients(self, *args: object, **kwargs: object) -> list[tuple[Any, Any]]:
        """Pairs of gradient and variable; the gradients are those of all ranks.

        Args:
            args, kwargs: as of the wrapped optimizer.

        Raises:
            tf.errors.OpError: a reduction failed; in a graph, when it runs.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return []
        grads, vars = map(list, zip(*pairs, strict=True))
        reduction = (
            self._aggregation.compute_gradients if self._aggregation else self._reducer.reduce
        )
        return list(zip(reduction(grads, vars), vars, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Iterable[Pair],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> Any:
        """Takes the wrapped optimizer's step; with several passes, in the last of them only.

        Args:
            grads_and_vars: what ``compute_gradients`` has returned, changed or not.
            global_step: a variable that counts all passes, or None.
            name: of the operation.

        Returns:
            The operation to run.
        """
        pairs = list(grads_and_vars)

        def step() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if self._aggregation is None:
            return step()
        return self._aggregation.apply_gradients(
            step, self._optimizer, pairs, global_step=global_step, name=name
        )

    def get_slot(self, var: Variable, name: str) -> Any:
        """A slot of the wrapped optimizer."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The names of the slots of the wrapped optimizer."""
        names: list[str] = self._optimizer.get_slot_names()
        return names

    def variables(self) -> list[Any]:
        """The variables of the wrapped optimizer."""
        variables: list[Any] = self._optimizer.variables()
        return variables
