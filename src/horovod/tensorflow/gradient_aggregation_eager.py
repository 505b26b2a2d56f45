"""Adds up gradients over several passes and reduces their sum, in eager mode and tf.function."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import tensorflow as tf

from horovod._rank import context
from horovod._train.gradients import check_passes
from horovod._train.process_set import ProcessSet, global_process_set
from horovod.errors import UsageError
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.gradient_groups import variable_key
from horovod.tensorflow.gradient_reducer import as_dense

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from horovod._rank.group import Group
    from horovod._settings.config import Config
    from horovod.tensorflow.interface_types import Gradient, Optimizer, Variable

__all__ = ["LocalGradientAggregationHelperEager"]

_logger = logging.getLogger(__name__)


class LocalGradientAggregationHelperEager:
    """Communicates in every n-th pass only.

    The passes of a step belong to one job: in a new one, whose newcomers have no sums, all ranks
    begin with the first pass.

    Args:
        backward_passes_per_step: n, at least 1.
        allreduce_func: reduces (gradients, variables), called with the sums.
        sparse_as_dense: add ``tf.IndexedSlices`` up as dense tensors; they are refused otherwise.
        average_aggregated_gradients: divide the reduced sums by n.
        process_set: the ranks that take part.
        scale_local_gradients: for ``allreduce_func``, which does it.

    Attributes:
        counter: of the passes since the last reduction; a ``tf.Variable``.

    Raises:
        UsageError: n is below 1.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[Sequence[Gradient], Sequence[Variable]], Sequence[tf.Tensor]],
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        self.backward_passes_per_step = check_passes(backward_passes_per_step)
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self._allreduce = allreduce_func
        self._sums: dict[Hashable, Any] = {}
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int64, name="passes")
        self._context = context.current().number
        _aggregations.helpers.add(self)

    def begin_in_job_of(self, number: int) -> None:
        """Forget the passes of an earlier job.

        Args:
            number: of the context that has joined a job; another one than that in which this was
                made changes nothing.
        """
        with tf.init_scope():
            is_of_job = number == self._context and tf.executing_eagerly()
            count = int(self.counter.numpy()) if is_of_job else 0
            if not count:
                return
            _logger.warning(
                "DistributedOptimizer: the job has changed after %d of %d passes of a step; their "
                "gradients are dropped, and the step begins again",
                count,
                self.backward_passes_per_step,
            )
            self._clear(self._sums.values())

    def is_between_passes(self, optimizer: Optimizer) -> bool:
        """Whether gradients have been added up that are not reduced yet."""
        return bool(int(self.counter.numpy()))

    def build(self, variables: Sequence[Variable]) -> None:
        """Makes the sums of the gradients of some variables, which are zero."""
        # Outside of the graph that is being traced: it may be traced again.
        with tf.init_scope():
            for variable in variables:
                key = variable_key(variable)
                if key not in self._sums:
                    zeros = tf.zeros(variable.shape, variable.dtype)
                    self._sums[key] = tf.Variable(zeros, trainable=False, name="sum")

    @as_written
    def compute_gradients(self, grads: Sequence[Gradient], vars: Sequence[Variable]) -> list[Any]:
        """Adds gradients to the sums, and counts the pass.

        Args:
            grads: of this pass; a missing one stays None.
            vars: to which they belong.

        Returns:
            In the n-th pass the reduced sums, otherwise the sums of this rank so far.

        Raises:
            UsageError: a gradient is sparse, and ``sparse_as_dense`` is False.
        """
        places = [i for i, gradient in enumerate(grads) if gradient is not None]
        gradients = [self._dense(grads[i], vars[i]) for i in places]
        variables = [vars[i] for i in places]
        self.build(variables)
        sums = [self._sums[variable_key(variable)] for variable in variables]
        # TensorFlow keeps the order of what reads and writes a variable, also in a tf.function.
        for total, gradient in zip(sums, gradients, strict=True):
            total.assign_add(tf.cast(gradient, total.dtype))
        is_last = tf.equal(self.counter.assign_add(1), self.backward_passes_per_step)
        reached = choose(
            is_last, lambda: self._reduce(sums, variables), lambda: [s.read_value() for s in sums]
        )
        result: list[Any] = [None] * len(grads)
        for index, value in zip(places, reached, strict=True):
            result[index] = value
        return result

    @as_written
    def apply_gradients(
        self,
        apply_grads_closure: Callable[[], tf.Operation],
        optimizer: Optimizer,
        *args: tf.Variable | None,
        **kwargs: tf.Variable | None,
    ) -> Any:
        """Takes the step if this pass was the n-th, otherwise only counts the iteration.

        Args:
            apply_grads_closure: takes the step; nothing that it returns is used.
            optimizer: its ``iterations`` are raised if the step is not taken.
            *args: unused, for the interface of the helper for graphs.
            **kwargs: a variable ``global_step`` is raised like the iterations.

        Returns:
            What ``tf.cond`` makes of it; something to depend on in a graph.
        """
        counters = [getattr(optimizer, "iterations", None), kwargs.get("global_step")]

        def step() -> Any:
            apply_grads_closure()
            return tf.constant(True)

        def skip() -> Any:
            for counter in counters:
                if counter is not None:
                    counter.assign_add(1)
            return tf.constant(False)

        # The counter went back to zero when the sums were reduced.
        return choose(tf.equal(self.counter, 0), step, skip)

    def _reduce(self, sums: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        reduced = list(self._allreduce([s.read_value() for s in sums], variables))
        if self.average_aggregated_gradients:
            passes = self.backward_passes_per_step
            reduced = [gradient / tf.cast(passes, gradient.dtype) for gradient in reduced]
        self._clear(sums)
        return reduced

    def _clear(self, sums: Iterable[Any]) -> None:
        # Not multiplied by zero, which would keep infinities.
        for total in sums:
            total.assign(tf.zeros(total.shape, total.dtype))
        self.counter.assign(0)

    def _dense(self, gradient: Any, variable: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self.sparse_as_dense:
            raise UsageError(
                f"the gradient of {getattr(variable, 'name', 'a variable')} is sparse; with "
                "backward_passes_per_step > 1 gradients can only be added up with "
                "sparse_as_dense=True"
            )
        return as_dense(gradient, tuple(variable.shape))


def choose(condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return what one of two functions returns, in eager mode and in graphs."""
    if tf.executing_eagerly():
        return then() if bool(condition) else otherwise()
    return tf.cond(condition, then, otherwise)


class _Aggregations:
    """Lets all sums begin again in a new job; a tf.function that was traced asks nobody."""

    def __init__(self) -> None:
        self.helpers: WeakSet[LocalGradientAggregationHelperEager] = WeakSet()

    def begun(self, config: Config, group: Group, number: int) -> None:
        for helper in list(self.helpers):
            helper.begin_in_job_of(number)

    def ended(self, group: Group) -> None:
        """The sums stay until the next job begins."""


_aggregations = _Aggregations()
context.listen(_aggregations)
