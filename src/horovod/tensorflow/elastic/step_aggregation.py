"""Adds up the gradients of the passes of a step, where an elastic training says which they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod.errors import UsageError
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.gradient_aggregation_eager import (
    LocalGradientAggregationHelperEager,
    choose,
)
from horovod.tensorflow.gradient_groups import variable_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._train.elastic.ledger import Share
    from horovod.tensorflow.interface_types import Gradient, Optimizer, Variable

__all__ = ["StepAggregation"]


class StepAggregation(LocalGradientAggregationHelperEager):
    """Communicates and steps with the last pass of a step, by the mean over all its samples.

    What a ``tf.function`` does in a pass follows from variables, so that it is traced once. In the
    other passes the optimizer's ``iterations`` stay, and with them schedules of its rate.

    Args:
        reduce: reduces (gradients, variables) over the ranks, each weighed by its samples.
        sparse_as_dense: add ``tf.IndexedSlices`` up as dense tensors; they are refused otherwise.
    """

    def __init__(
        self,
        reduce: Callable[[Sequence[Gradient], Sequence[Variable]], Sequence[tf.Tensor]],
        sparse_as_dense: bool,
    ) -> None:
        super().__init__(1, reduce, sparse_as_dense)
        self._was_used = False
        with tf.init_scope():
            self._part = tf.Variable(1.0, trainable=False, dtype=tf.float64, name="part_of_step")
            self._is_first = tf.Variable(True, trainable=False, name="begins_step")
            self._is_last = tf.Variable(True, trainable=False, name="ends_step")

    def begin(self, share: Share | None) -> None:
        """Begin a pass.

        Args:
            share: this rank's samples in it; None where a batch is a step, as ever.
        """
        is_only = share is None or share.passes == 1
        part = 1.0 if share is None or is_only else share.samples / share.of_step
        self._part.assign(part)
        self._is_first.assign(share is None or share.number == 0)
        self._is_last.assign(share is None or share.ends_step)

    def check_used(self) -> None:
        """Make sure, at the end of a pass, that it has been added up.

        Raises:
            UsageError: what took the step was compiled before there was a global batch.
        """
        if not self._was_used:
            raise UsageError(
                "global_batch: the optimizer was not applied in the first batch, or in a function "
                "that was compiled before, which takes a step with each batch; call batches() or "
                "dataset() with global_batch before the function is called for the first time"
            )

    @as_written
    def compute_gradients(self, grads: Sequence[Gradient], vars: Sequence[Variable]) -> list[Any]:
        """Add gradients to the sums; a missing one stays None.

        Args:
            grads: of this pass.
            vars: to which they belong.

        Returns:
            In the last pass the reduced means over samples, otherwise those of this rank so far.

        Raises:
            UsageError: a gradient is sparse, and ``sparse_as_dense`` is False.
        """
        self._was_used = True
        places = [i for i, gradient in enumerate(grads) if gradient is not None]
        variables = [vars[i] for i in places]
        gradients = [self._dense(grads[i], vars[i]) for i in places]
        self.build(variables)
        sums = [self._sums[variable_key(variable)] for variable in variables]
        for total, gradient in zip(sums, gradients, strict=True):
            total.assign(self._added(total, tf.cast(gradient, total.dtype)))
        reached = choose(
            self._is_last.read_value(),
            lambda: list(self._allreduce([s.read_value() for s in sums], variables)),
            lambda: [s.read_value() for s in sums],
        )
        result: list[Any] = [None] * len(grads)
        for index, value in zip(places, reached, strict=True):
            result[index] = value
        return result

    def _added(self, total: tf.Variable, gradient: tf.Tensor) -> Any:
        part = self._part.read_value()
        # What does not count may be infinite, so it is not multiplied by zero.
        counted = tf.where(part > 0, gradient * tf.cast(part, gradient.dtype), 0)
        return tf.where(self._is_first.read_value(), counted, total.read_value() + counted)

    @as_written
    def apply_gradients(
        self,
        apply_grads_closure: Callable[[], tf.Operation],
        optimizer: Optimizer,
        *args: tf.Variable | None,
        **kwargs: tf.Variable | None,
    ) -> Any:
        """Take the step if this pass was the last.

        Args:
            apply_grads_closure: takes it; nothing that it returns is used.
            optimizer, args, kwargs: unused.
        """

        def step() -> Any:
            apply_grads_closure()
            return tf.constant(True)

        return choose(self._is_last.read_value(), step, lambda: tf.constant(False))
