"""Keras optimizers that use the gradients of all ranks: what both generations share."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from horovod.errors import UsageError
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from horovod.tensorflow.gradient_reducer import GradientReducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horovod.tensorflow.interface_types import Optimizer, Variable
    from horovod.tensorflow.reduction_settings import ReductionSettings

T = TypeVar("T")


@dataclass(frozen=True)
class Wrapping:
    """The settings of a wrapped class, for all its instances.

    Attributes:
        settings: how gradients are reduced.
        reduce: makes what ``__reduce__`` returns, so that pickles and copies reduce as well.
        passes: calls of ``apply`` per step.
        average_aggregated_gradients: whether the sum over the passes is divided by their number.
    """

    settings: ReductionSettings
    reduce: Callable[[Any], tuple[Any, ...]]
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


class ReducingOptimizer:
    """The extension by ``DistributedOptimizer`` of the class of the given optimizer.

    Where gradients are reduced depends on the generation of Keras; see the classes that derive from
    this one, which stand in front of the given optimizer's class.
    """

    _HAS_AGGREGATE_GRAD = True
    plain_class: type
    wrapping: Wrapping
    _has_local = False
    _reducer: GradientReducer
    _agg_helper: LocalGradientAggregationHelperEager | None

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Takes what the plain class takes; ``from_config`` comes here."""
        super().__init__(*args, **kwargs)
        self._begin()

    def register_local_var(self, var: Variable) -> None:
        """Leaves the gradient of a variable out of the reduction.

        Args:
            var: of which each rank has its own.
        """
        self._reducer.register_local(var)
        type(self)._has_local = True

    def register_local_layers(self, layers: Sequence[Any]) -> None:
        """Leaves the gradients of Keras layers out of the reduction.

        Args:
            layers: of which each rank has its own.
        """
        self._reducer.register_local_layers(layers)
        type(self)._has_local = bool(layers)

    @classmethod
    def from_config(cls, config: Any, *args: Any, **kwargs: Any) -> Any:
        """Make an optimizer of this class from the configuration of another one.

        Args:
            config: what ``get_config()`` returned.
            args, kwargs: as of the plain class.

        Raises:
            UsageError: gradients stay on their rank, of which a configuration says nothing.
        """
        if cls._has_local:
            raise UsageError(
                "from_config() of a DistributedOptimizer: some gradients stay on their rank "
                "(local_layers or register_local_var()), but a configuration does not say which; "
                "copy the model with the optimizer, or wrap a plain optimizer again"
            )
        plain: Any = super()
        return plain.from_config(config, *args, **kwargs)

    def __reduce__(self) -> Any:
        """Pickles and copies reduce in the same way."""
        return self.wrapping.reduce(self)

    def __copy__(self) -> Any:
        made: Any = object.__new__(type(self))
        object.__setattr__(made, "__dict__", dict(vars(self)))
        return made

    def __deepcopy__(self, memo: Any) -> Any:
        function, given = self.__reduce__()
        made = function(*copy.deepcopy(given, memo))
        memo[id(self)] = made
        return made

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


def share_state(optimizer: Optimizer, other_class: type) -> Any:
    """Returns an instance of another class that has the same attributes, now and later.

    A constructor would make new variables, and forget what is not in the optimizer's config.
    """
    other: Any = object.__new__(other_class)
    object.__setattr__(other, "__dict__", vars(optimizer))
    return other


def wrapped_class(added: type[ReducingOptimizer], plain: type, wrapping: Wrapping) -> type:
    """The class of a wrapped optimizer.

    Args:
        added: what stands in front of the plain class.
        plain: the class of the given optimizer.
        wrapping: what its instances do.
    """
    content = {
        "__doc__": plain.__doc__,
        "__module__": "horovod._keras",  # which libraries and tests of scripts look for
        "plain_class": plain,
        "wrapping": wrapping,
    }
    # Under which name Keras 2 saves a class: what the class itself has, not what it inherits.
    content |= {name: value for name, value in vars(plain).items() if "_api_names" in name}
    metaclass: Any = _CountsAsPlain
    if type(plain) is not type:
        metaclass = type("_CountsAsPlain", (_CountsAsPlain, type(plain)), {})
    made: type = metaclass(plain.__name__, (added, plain), content)
    return made
