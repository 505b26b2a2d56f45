"""Reduces gradients in the optimizers of Keras 2: the new ones of 2.11, and the legacy ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from horovod._keras.reducing_optimizer import CallableList, ReducingOptimizer
from horovod.errors import UsageError
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.gradient_groups import variable_key
from horovod.tensorflow.keras_generation import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from horovod.tensorflow.interface_types import Loss, Optimizer, Pair, Variable, Variables

    Pairs = list[tuple[Any, Any]]


class ReducedOnes:
    """Gradients that have been reduced already, but not applied yet.

    A step that computes gradients by the optimizer gets reduced ones, which it may clip before it
    applies them; one that computes them by a tape has them reduced when it applies them. Both come
    through ``apply_gradients``. What a graph computes is applied in it, or in a branch of it.
    """

    def __init__(self) -> None:
        self._eager: list[set[Hashable]] = []
        self._of_graphs: WeakKeyDictionary[Any, list[set[Hashable]]] = WeakKeyDictionary()

    def add(self, variables: Iterable[Variable]) -> None:
        """Notes the variables whose gradients have just been reduced together."""
        if tf.executing_eagerly():
            noted = self._eager
        else:
            noted = self._of_graphs.setdefault(tf.compat.v1.get_default_graph(), [])
        noted.append({variable_key(variable) for variable in variables})

    def take(self, variables: Iterable[Variable]) -> set[Hashable]:
        """Returns which of some variables were noted, and forgets them."""
        asked = {variable_key(variable) for variable in variables}
        found: set[Hashable] = set()
        for noted in self._here():
            found |= asked.intersection(set().union(*noted))
            noted[:] = [together for together in noted if not asked & together]
        return found

    def _here(self) -> list[list[set[Hashable]]]:
        if tf.executing_eagerly():
            return [self._eager]
        graph, lists = tf.compat.v1.get_default_graph(), []
        while graph is not None:
            lists.append(self._of_graphs.get(graph, []))
            graph = getattr(graph, "outer_graph", None)
        return lists


class ReducingOptimizer2(ReducingOptimizer):
    """Reduces where gradients are computed, or else where they are applied; once.

    Keras 2 computes gradients in ``minimize`` and what it calls, and sums those of the replicas of
    this process in ``apply_gradients`` and its ``aggregate_gradients``. All of that comes before
    gradients are clipped. A LossScaleOptimizer around this optimizer calls the same two methods, in
    front of its decision whether to take the step.
    """

    _reduced: ReducedOnes

    def _begin(self) -> None:
        super()._begin()
        self._reduced = ReducedOnes()

    def _reduce_computed(self, pairs: Iterable[tuple[Any, Any]]) -> Pairs:
        """Reduces what was computed, and remembers that."""
        gradients, variables = _apart(pairs)
        reached = self._reduce(gradients, variables)
        self._reduced.add(variables)
        return list(zip(reached, variables, strict=True))

    def _reduce_others(self, pairs: Iterable[tuple[Any, Any]]) -> Pairs:
        """Reduces what has not been reduced when it was computed."""
        gradients, variables = _apart(pairs)
        done = self._reduced.take(variables)
        places = [i for i, each in enumerate(variables) if variable_key(each) not in done]
        if places:
            reached = self._reduce([gradients[i] for i in places], [variables[i] for i in places])
            for place, gradient in zip(places, reached, strict=True):
                gradients[place] = gradient
        return list(zip(gradients, variables, strict=True))

    def _reduce(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        if self._agg_helper is None:
            return self._allreduce(gradients, variables)
        reached: list[Any] = self._agg_helper.compute_gradients(gradients, variables)
        return reached

    def _take_step(self, apply: Callable[[], Any]) -> Any:
        if self._agg_helper is None:
            return apply()
        return self._agg_helper.apply_gradients(apply, self)


class NewReducingOptimizer2(ReducingOptimizer2):
    """For the optimizers of ``keras.optimizers`` since Keras 2.11."""

    @as_written
    def compute_gradients(
        self, loss: Loss, var_list: Variables, tape: tf.GradientTape | None = None
    ) -> Pairs:
        """Computes the gradients of this rank, and reduces them.

        Args:
            loss: a function without arguments, or a tensor that ``tape`` has recorded.
            var_list: the variables, or a function that returns them.
            tape: see Keras.

        Returns:
            Pairs of gradients and variables, for ``apply_gradients``.
        """
        plain: Any = super()
        return self._reduce_computed(plain.compute_gradients(loss, var_list, tape))

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Pairs:
        """Compute gradients for scripts that were written for legacy optimizers."""
        if grad_loss is not None:
            raise UsageError("grad_loss is for legacy optimizers; multiply the loss by it")
        return self.compute_gradients(loss, var_list, tape)

    def aggregate_gradients(self, grads_and_vars: Iterable[Pair]) -> Pairs:
        """Reduces what ``compute_gradients`` has not; Keras calls this from ``apply_gradients``.

        Args:
            grads_and_vars: pairs of gradients and variables.
        """
        plain: Any = getattr(self, "inner_optimizer", super())
        return self._reduce_others(plain.aggregate_gradients(list(grads_and_vars)))

    @as_written
    def apply_gradients(
        self,
        grads_and_vars: Iterable[Pair],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        **kwargs: object,
    ) -> Any:
        """Reduces gradients unless ``compute_gradients`` has, clips them, and takes the step.

        Args:
            grads_and_vars: pairs of gradients and variables.
            name: see Keras.
            skip_gradients_aggregation: take the gradients as they are.
            **kwargs: ``experimental_aggregate_gradients``, the opposite of the former.
        """
        plain: Any = super()
        this: Any = self
        pairs = list(grads_and_vars)
        skips = not kwargs.pop("experimental_aggregate_gradients", True)
        if not (skips or skip_gradients_aggregation):
            pairs = self.aggregate_gradients(pairs)
        options = {"skip_gradients_aggregation": True, **kwargs}
        if name is not None:  # a LossScaleOptimizer has no such argument
            options["name"] = name
        if self._agg_helper is not None:
            # Not in a branch of the graph, where no variables can be made.
            with tf.init_scope():
                this.build([variable for gradient, variable in pairs if gradient is not None])
        return self._take_step(lambda: plain.apply_gradients(pairs, **options))


class LegacyReducingOptimizer2(ReducingOptimizer2):
    """For ``keras.optimizers.legacy``, the optimizers before Keras 2.11."""

    @property
    def variables(self) -> CallableList[Any]:
        """The variables of the optimizer; a list that can also be called."""
        plain: Any = super()
        return CallableList(plain.variables())

    @as_written
    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Pairs:
        plain: Any = super()
        return self._reduce_computed(plain._compute_gradients(loss, var_list, grad_loss, tape))

    def compute_gradients(
        self, loss: Loss, var_list: Variables, tape: tf.GradientTape | None = None
    ) -> Pairs:
        """Computes the gradients of this rank, and reduces them.

        Args:
            loss: a function without arguments, or a tensor that ``tape`` has recorded.
            var_list: the variables, or a function that returns them.
            tape: see Keras.

        Returns:
            Pairs of gradients and variables, for ``apply_gradients``.
        """
        return self._compute_gradients(loss, var_list, tape=tape)

    @as_written
    def get_gradients(self, loss: Loss, params: Sequence[Variable]) -> list[Any]:
        """The reduced gradients, in a graph of tf.compat.v1.

        Args:
            loss: a tensor.
            params: the variables.

        Raises:
            UsageError: gradients are to be added up over several passes.
        """
        if self._agg_helper is not None:
            raise UsageError(
                "backward_passes_per_step > 1 does not work with Keras in graphs of tf.compat.v1; "
                "leave eager execution enabled"
            )
        plain: Any = super()
        gradients = plain.get_gradients(loss, params)
        pairs = self._reduce_computed(zip(gradients, tf.nest.flatten(params), strict=True))
        return [gradient for gradient, _ in pairs]

    def _aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Pairs:
        plain: Any = getattr(self, "inner_optimizer", super())
        return self._reduce_others(plain._aggregate_gradients(list(grads_and_vars)))

    @as_written
    def apply_gradients(
        self,
        grads_and_vars: Iterable[Pair],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        """Reduces gradients unless they were computed reduced, clips them, and takes the step.

        Args:
            grads_and_vars: pairs of gradients and variables.
            name: see Keras.
            experimental_aggregate_gradients: False takes the gradients as they are.
        """
        plain: Any = super()
        this: Any = self
        pairs = list(grads_and_vars)
        if experimental_aggregate_gradients:
            pairs = self._aggregate_gradients(this._transform_unaggregated_gradients(pairs))
        if self._agg_helper is not None:
            # Not in a branch of the graph, where no variables can be made.
            with tf.init_scope():
                this._create_all_weights([var for grad, var in pairs if grad is not None])
        return self._take_step(
            lambda: plain.apply_gradients(pairs, name, experimental_aggregate_gradients=False)
        )


def reducing_class(optimizer: Optimizer) -> type[ReducingOptimizer]:
    """Return the class to put in front of the class of an optimizer.

    Raises:
        UsageError: it is neither new nor legacy.
    """
    if hasattr(optimizer, "aggregate_gradients"):
        return NewReducingOptimizer2
    if hasattr(optimizer, "_aggregate_gradients"):
        return LegacyReducingOptimizer2
    raise UsageError(
        f"{kind_of(optimizer)} is an optimizer of Keras that computes no gradients for others; "
        "use one of keras.optimizers or keras.optimizers.legacy"
    )


def refuse_inner(optimizer: Optimizer) -> None:
    """Raises if an optimizer holds a wrapped one, which does all there is to do.

    Raises:
        UsageError: it does.
    """
    if isinstance(getattr(optimizer, "inner_optimizer", None), ReducingOptimizer):
        raise UsageError("the LossScaleOptimizer holds a DistributedOptimizer already")


def _apart(pairs: Iterable[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    pairs = list(pairs)
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
