"""Summing gradients over several passes before they are reduced, in graphs of tf.compat.v1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._train.gradients import check_passes
from horovod._train.process_set import ProcessSet, global_process_set
from horovod.errors import UsageError
from horovod.tensorflow.gradient_groups import variable_key
from horovod.tensorflow.gradient_reducer import as_dense
from horovod.tensorflow.rank_ops import num_members_op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod.tensorflow.interface_types import Gradient, V1Optimizer, Variable

    Reduction = Callable[[list[Any], list[Any]], Sequence[Any]]

__all__ = ["LocalGradientAggregationHelper"]

AGGREGATING_COLLECTION = "aggregating_collection"


class LocalGradientAggregationHelper:
    """Adds up gradients on this rank; every ``backward_passes_per_step`` passes they are reduced.

    Counter and sums are local variables of the graph, so the local variables' initializer must run;
    MonitoredTrainingSession does that.

    Args:
        backward_passes_per_step: passes of one step, at least 1.
        allreduce_func: from gradients and their variables to reduced gradients.
        sparse_as_dense: whether IndexedSlices are added up as dense tensors.
        average_aggregated_gradients: divide the sums by the number of passes.
        rank: of this process; part of the names of the variables.
        optimizer_type: ``_OPTIMIZER_TYPE_KERAS`` initializes the variables in the default session
            at once, as nobody else does; ``_OPTIMIZER_TYPE_LEGACY`` does not.
        process_set: the ranks that take part.
        scale_local_gradients: divide the gradients of local variables by the size of the set.
        name: part of the names of the variables, to tell optimizers apart.

    Raises:
        UsageError: ``backward_passes_per_step`` is below 1.
    """

    _OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    _OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Reduction,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        self.backward_passes_per_step = check_passes(backward_passes_per_step)
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.scale_local_gradients = scale_local_gradients
        self.process_set = process_set
        self.counter: Any = None
        self._allreduce = allreduce_func
        self._scope = f"aggregation_variables_{name}{rank}"
        self._optimizer_type = optimizer_type
        self._local_vars: set[Any] = set()

    def register_local_var(self, var: Variable) -> None:
        """Keeps the gradient of a variable on this rank."""
        self._local_vars.add(variable_key(var))

    def compute_gradients(self, grads: Sequence[Gradient], vars: Sequence[Variable]) -> list[Any]:
        """Adds one pass to the sums.

        Args:
            grads: of this pass, of shapes that are known, or None.
            vars: one per gradient.

        Returns:
            In the last pass of a step the reduced sums, in all others ``grads``; None stays None.

        Raises:
            UsageError: a gradient is sparse and ``sparse_as_dense`` was not set.
        """
        present = [index for index, grad in enumerate(grads) if grad is not None]
        passed = [self._dense(grads[index], vars[index]) for index in present]
        trained = [vars[index] for index in present]
        sums = self._make_variables(passed, trained)
        # Everything below follows from what is read here, so that nothing reads the counter while
        # it changes.
        count = self.counter.read_value() + 1
        is_last = tf.equal(count, self.backward_passes_per_step)
        totals = [self._add(total, grad, count) for total, grad in zip(sums, passed, strict=True)]
        with tf.control_dependencies([count, is_last]):
            counted = self.counter.assign(tf.where(is_last, 0, count), read_value=False)
        chosen = self._reduce_if(is_last, totals, passed, trained) if present else []
        results: list[Any] = [None] * len(grads)
        with tf.control_dependencies([counted]):
            for index, grad in zip(present, chosen, strict=True):
                results[index] = tf.identity(grad)
        return results

    def apply_gradients(
        self,
        apply_grads_closure: Callable[[], tf.Operation],
        optimizer: V1Optimizer,
        *args: object,
        **kwargs: object,
    ) -> Any:
        """Takes the optimizer's step if the last pass of a step has been counted.

        Args:
            apply_grads_closure: takes it.
            optimizer: whose ``iterations``, if it has them, count the other passes as well.
            args, kwargs: what the optimizer's apply_gradients was given, first of all pairs of
                gradients and variables; ``global_step`` counts the other passes as well.

        Returns:
            The operation to run.
        """
        if self.counter is None:
            raise UsageError("apply_gradients needs the gradients of compute_gradients")

        def step() -> Any:
            with tf.control_dependencies(_operations(apply_grads_closure())):
                return tf.constant(True)

        def skip() -> Any:
            with tf.control_dependencies(_count_pass(optimizer, kwargs.get("global_step"))):
                return tf.constant(False)

        # What compute_gradients returned is there after it has counted.
        with tf.control_dependencies(_tensors_of(args)):
            is_due = tf.equal(self.counter.read_value(), 0)
        return tf.cond(is_due, step, skip).op

    def _dense(self, grad: Any, var: Any) -> Any:
        if not isinstance(grad, tf.IndexedSlices):
            return grad
        if not self.sparse_as_dense:
            raise UsageError(
                f"the gradient of {var.name!r} is sparse (IndexedSlices), which cannot be added up "
                "over backward_passes_per_step passes; give sparse_as_dense=True"
            )
        return as_dense(grad, tuple(var.shape) if var.shape.is_fully_defined() else None)

    def _make_variables(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """The counter, and a sum for each gradient."""
        local = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
        # A second optimizer of the same name counts for itself.
        with tf.compat.v1.variable_scope(None, default_name=self._scope):
            self.counter = tf.compat.v1.get_variable(
                "aggregation_counter",
                shape=(),
                dtype=tf.int32,
                initializer=tf.compat.v1.zeros_initializer(),
                trainable=False,
                collections=local,
                use_resource=True,
            )
            sums = [
                tf.compat.v1.get_variable(
                    f"sum_of_{var.name.split(':')[0]}",
                    shape=grad.shape if grad.shape.is_fully_defined() else var.shape,
                    dtype=grad.dtype.base_dtype,
                    initializer=tf.compat.v1.zeros_initializer(),
                    trainable=False,
                    collections=[*local, AGGREGATING_COLLECTION],
                    use_resource=True,
                )
                for grad, var in zip(grads, vars, strict=True)
            ]
        self._initialize([self.counter, *sums])
        return sums

    def _initialize(self, variables: Sequence[Any]) -> None:
        if self._optimizer_type != self._OPTIMIZER_TYPE_KERAS:
            return
        session = tf.compat.v1.get_default_session()
        if session is not None:
            session.run(tf.compat.v1.variables_initializer(variables))

    def _add(self, total: Any, grad: Any, count: Any) -> Any:
        """The sum with one more pass; the first one replaces it, so that no NaN stays in it."""
        with tf.control_dependencies([count]):
            new = tf.where(tf.equal(count, 1), grad, total.read_value() + grad)
            with tf.control_dependencies([total.assign(new, read_value=False)]):
                return tf.identity(new)

    def _reduce_if(
        self, is_last: Any, totals: Sequence[Any], passed: Sequence[Any], vars: Sequence[Any]
    ) -> list[Any]:
        # The sums stand outside of the branches, so they are computed in every pass, and each can
        # leave as soon as it is there.
        chosen = tf.cond(
            is_last, lambda: self._reduce(totals, vars), lambda: list(map(tf.identity, passed))
        )
        return list(chosen) if isinstance(chosen, list | tuple) else [chosen]

    def _reduce(self, totals: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        results = list(totals)
        shared = [
            index for index, var in enumerate(vars) if variable_key(var) not in self._local_vars
        ]
        reduced = self._allreduce(
            [totals[index] for index in shared], [vars[index] for index in shared]
        )
        for index, grad in zip(shared, reduced, strict=True):
            results[index] = grad
        own = set(range(len(results))).difference(shared)
        if self.scale_local_gradients and own:
            size = num_members_op(self.process_set)
            for index in own:
                results[index] = results[index] / tf.cast(size, results[index].dtype)
        if not self.average_aggregated_gradients:
            return list(map(tf.identity, results))
        return [grad / tf.cast(self.backward_passes_per_step, grad.dtype) for grad in results]


def _count_pass(optimizer: Any, global_step: Any) -> list[Any]:
    counts = [getattr(optimizer, "iterations", None), global_step]
    return [count.assign_add(tf.ones([], count.dtype)) for count in counts if count is not None]


def _operations(applied: Any) -> list[Any]:
    return [item for item in tf.nest.flatten(applied) if item is not None]


def _tensors_of(args: Sequence[Any]) -> list[tf.Tensor]:
    pairs = list(args[0]) if args else []
    grads = [grad.values if isinstance(grad, tf.IndexedSlices) else grad for grad, _ in pairs]
    return [grad for grad in grads if tf.is_tensor(grad)]
