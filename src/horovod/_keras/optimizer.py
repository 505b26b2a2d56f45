"""Keras optimizers that use the gradients of all ranks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import keras

from horovod.errors import UsageError
from horovod.tensorflow.autograph import as_written
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from horovod.tensorflow.gradient_reduction import GradientReducer, ReductionSettings
from horovod.train.gradients import check_passes
from horovod.train.reduce_op import Average, Sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")

_SCALER_MODULE = keras.optimizers.LossScaleOptimizer.__module__


@dataclass(frozen=True)
class Wrapping:
    """What a wrapped class does, for all its instances.

    Attributes:
        settings: how gradients are reduced.
        passes: calls of ``apply`` per step.
        average_aggregated_gradients: whether the sum over the passes is divided by their number.
    """

    settings: ReductionSettings
    passes: int = 1
    average_aggregated_gradients: bool = False


class _CountsAsPlain(type):
    """Lets a wrapped class be found where Keras looks for the plain one.

    Keras saves the name under which it finds an optimizer's class in its tables. So a saved model
    names the plain class, and loads without Horovod.
    """

    plain_class: type

    def __eq__(cls, other: object) -> bool:
        return cls is other or cls.plain_class is getattr(other, "plain_class", other)

    def __hash__(cls) -> int:
        return hash(cls.plain_class)


class CallableList(list[T]):
    """A list that returns itself when called, for scripts that call ``optimizer.variables()``."""

    def __call__(self) -> CallableList[T]:
        return self


class ReducingOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras has no types
    """What ``DistributedOptimizer`` adds to the class of the given optimizer.

    Keras updates variables in ``apply`` alone, whether a script calls it, ``apply_gradients`` or
    ``model.fit``. So gradients are reduced there, before they are clipped or scaled.
    """

    _HAS_AGGREGATE_GRAD = True
    plain_class: type
    wrapping: Wrapping
    _reducer: GradientReducer
    _agg_helper: LocalGradientAggregationHelperEager | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what the plain class takes; ``from_config`` comes here."""
        super().__init__(*args, **kwargs)
        self._begin()

    @property
    def variables(self) -> CallableList[Any]:
        """The variables of the optimizer; a list that can also be called."""
        return CallableList(super().variables)

    def register_local_var(self, var: Any) -> None:
        """Leaves the gradient of a variable out of the reduction.

        Args:
            var: of which each rank has its own.
        """
        self._reducer.register_local(var)

    @as_written
    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Reduces the gradients, then updates the variables.

        Args:
            grads: of this rank; all ranks must call with gradients of the same variables.
            trainable_variables: to which they belong; those of the last ``build`` if None.

        Raises:
            UsageError: the process set is not registered, XLA would have to compile this, or a
                LossScaleOptimizer holds this optimizer.
        """
        grads = list(grads)
        if trainable_variables is None:
            variables = list(self._trainable_variables) if self.built else []
        else:
            variables = list(trainable_variables)
        if not grads or len(grads) != len(variables):
            super().apply(grads, trainable_variables)  # which says what is wrong
            return
        _refuse_scaler()
        if self._agg_helper is None:
            super().apply(self._allreduce(grads, variables), variables)
        else:
            self._apply_every_nth(self._agg_helper, grads, variables)

    def _apply_every_nth(
        self,
        helper: LocalGradientAggregationHelperEager,
        grads: Sequence[Any],
        variables: list[Any],
    ) -> None:
        if not self.built:
            # Not in a branch of the graph, where no variables can be made.
            self.build(variables)
        reached = helper.compute_gradients(grads, variables)
        helper.apply_gradients(
            lambda: super(ReducingOptimizer, self).apply(reached, variables), self
        )

    def _allreduce(self, grads: Iterable[Any], vars: Iterable[Any]) -> list[Any]:
        return self._reducer.reduce(grads, vars)

    def _begin(self) -> None:
        wrapping = self.wrapping
        self._reducer = GradientReducer(wrapping.settings, numbered=True)
        self._agg_helper = None
        if wrapping.passes > 1:
            self._agg_helper = LocalGradientAggregationHelperEager(
                wrapping.passes,
                self._reducer.reduce,
                wrapping.settings.sparse_as_dense,
                wrapping.average_aggregated_gradients,
                wrapping.settings.process_set,
                wrapping.settings.scale_local_gradients,
            )


def wrap(optimizer: keras.optimizers.Optimizer, wrapping: Wrapping) -> ReducingOptimizer:
    """Makes an instance of the same class, by name, that shares the optimizer's whole state.

    Args:
        optimizer: a Keras optimizer; use the result instead of it.
        wrapping: what to do.

    Raises:
        UsageError: the optimizer or the arguments are wrong.
    """
    _check(optimizer, wrapping)
    wrapped: ReducingOptimizer = share_state(optimizer, _wrapped_class(type(optimizer), wrapping))
    wrapped._begin()
    return wrapped


def share_state(optimizer: Any, other_class: type) -> Any:
    """Returns an instance of another class that has the same attributes, now and later.

    A constructor would make new variables, and forget what is not in the optimizer's config.
    """
    other: Any = object.__new__(other_class)
    object.__setattr__(other, "__dict__", vars(optimizer))
    return other


def with_loss_scale(optimizer: ReducingOptimizer) -> ReducingOptimizer:
    """Puts a LossScaleOptimizer between the reduction and the optimizer.

    Whether a step is taken is decided there by whether all gradients are finite, so it has to see
    the reduced ones, which are alike on all ranks.
    """
    plain = share_state(optimizer, type(optimizer).plain_class)
    scaler = keras.optimizers.LossScaleOptimizer(plain, name="loss_scale_optimizer")
    outer = share_state(scaler, _wrapped_class(type(scaler), optimizer.wrapping))
    outer._reducer, outer._agg_helper = optimizer._reducer, optimizer._agg_helper
    wrapped: ReducingOptimizer = outer
    return wrapped


def _wrapped_class(plain: type, wrapping: Wrapping) -> type:
    content = {
        "__doc__": plain.__doc__,
        "__module__": __package__,
        "plain_class": plain,
        "wrapping": wrapping,
    }
    metaclass: Any = _CountsAsPlain
    if type(plain) is not type:
        metaclass = type("_CountsAsPlain", (_CountsAsPlain, type(plain)), {})
    wrapped: type = metaclass(plain.__name__, (ReducingOptimizer, plain), content)
    return wrapped


def _check(optimizer: Any, wrapping: Wrapping) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise UsageError(f"{kind} is no optimizer of Keras 3")
    if isinstance(optimizer, ReducingOptimizer):
        raise UsageError("the optimizer is a DistributedOptimizer already")
    if isinstance(getattr(optimizer, "inner_optimizer", None), ReducingOptimizer):
        raise UsageError(_SCALER_REFUSAL)
    if wrapping.settings.op not in (Average, Sum):
        raise UsageError(
            f"op={wrapping.settings.op.name.title()} is not possible with Keras optimizers; use "
            "hvd.Average or hvd.Sum"
        )
    check_passes(wrapping.passes)
    if wrapping.passes > 1 and getattr(optimizer, "gradient_accumulation_steps", None):
        raise UsageError(
            "backward_passes_per_step and gradient_accumulation_steps both add gradients up; give "
            "the optimizer only one of them"
        )


_SCALER_REFUSAL = (
    "a LossScaleOptimizer skips steps by the gradients of this rank alone if it holds a "
    "DistributedOptimizer; turn them around: "
    "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
)


def _refuse_scaler() -> None:
    """Raises if a plain LossScaleOptimizer calls: ranks would not reduce the same steps."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == _SCALER_MODULE:
            raise UsageError(_SCALER_REFUSAL)
        frame = frame.f_back  # type: ignore[assignment]
