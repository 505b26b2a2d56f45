"""Keras optimizers that use the gradients of all ranks: what both generations share."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from horovod._train.gradients import check_passes
from horovod._train.reduce_op import Average, Sum
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    import keras

T = TypeVar("T")


class Reducer(Protocol):
    """Reduces the gradients of one optimizer."""

    def register_local(self, variable: Any) -> None:
        """Leaves the gradient of a variable out of the reduction."""

    def register_local_layers(self, layers: Iterable[Any]) -> None:
        """Leaves the gradients of all weights of Keras layers out, also of layers yet to be built.

        Args:
            layers: what has ``trainable_weights``.
        """

    def reduce(self, gradients: Iterable[Any], variables: Iterable[Any]) -> list[Any]:
        """Return the gradients of all ranks."""

    @property
    def local_layers(self) -> Sequence[Any]:
        """The Keras layers whose gradients are left out."""

    def local_keys(self) -> set[Hashable]:
        """The keys of the variables whose gradients are left out."""


@dataclass(frozen=True)
class Wrapping:
    """The settings of a wrapped class, for all its instances.

    Attributes:
        settings: how gradients are reduced.
        begin: makes the reducer of an instance, and what adds its gradients up over several passes,
            or None.
        reduce: makes what ``__reduce__`` returns, so that pickles and copies reduce as well.
        passes: calls of ``apply`` per step.
        average_aggregated_gradients: whether the sum over the passes is divided by their number.
        shard_state: whether each rank has its share of the optimizer's state.
        kind: the function of ``hvd`` that wraps.
    """

    settings: Any
    begin: Callable[[Wrapping], tuple[Any, Any]]
    reduce: Callable[[Any], tuple[Any, ...]]
    passes: int = 1
    average_aggregated_gradients: bool = False
    shard_state: bool = False
    kind: str = "DistributedOptimizer"


class _CountsAsPlain(type):
    """Lets a wrapped class be found where Keras looks for the plain one.

    Keras saves the name under which it finds an optimizer's class in its tables. So a saved model
    names the plain class, and loads without Horovod.
    """

    saved_class: type

    def __eq__(cls, other: object) -> bool:
        return cls is other or cls.saved_class is getattr(other, "saved_class", other)

    def __hash__(cls) -> int:
        return hash(cls.saved_class)


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
    added_class: type[ReducingOptimizer]
    plain_class: type
    wrapping: Wrapping
    _has_local = False
    _reducer: Reducer
    _agg_helper: Any

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Takes what the plain class takes; ``from_config`` comes here."""
        super().__init__(*args, **kwargs)
        self._begin()

    def register_local_var(self, var: keras.Variable) -> None:
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
        if layers:
            type(self)._has_local = True

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

    def _variables_of(self, grads: Sequence[Any], given: Iterable[Any] | None) -> list[Any] | None:
        """Return the variables of gradients, for ``apply`` of Keras 3; None if they do not fit.

        Args:
            grads: of the variables.
            given: the variables; those of the last ``build`` if None.
        """
        this: Any = self
        if given is None:
            given = this._trainable_variables if this.built else ()
        variables = list(given)
        return variables if grads and len(grads) == len(variables) else None

    def _begin(self) -> None:
        self._reducer, self._agg_helper = self.wrapping.begin(self.wrapping)


def share_state(optimizer: Any, other_class: type) -> Any:
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
        "added_class": added,
        "plain_class": plain,
        "saved_class": public_class(plain),
        "wrapping": wrapping,
    }
    # Under which name Keras 2 saves a class: what the class itself has, not what it inherits.
    content |= {name: value for name, value in vars(plain).items() if "_api_names" in name}
    metaclass: Any = _CountsAsPlain
    if type(plain) is not type:
        metaclass = type("_CountsAsPlain", (_CountsAsPlain, type(plain)), {})
    made: type = metaclass(plain.__name__, (added, plain), content)
    return made


def check_wrapping(optimizer: Any, wrapping: Wrapping) -> None:
    """Refuse what no backend can do.

    Raises:
        UsageError: the optimizer is wrapped already, or the arguments do not go together.
    """
    if isinstance(optimizer, ReducingOptimizer):
        raise UsageError(f"the optimizer is a {optimizer.wrapping.kind} already")
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


def public_class(plain: type) -> type:
    """Return the class that Keras has in its tables; objects on PyTorch are of one below it."""
    for kind in plain.__mro__:
        if not kind.__module__.startswith("keras.src.backend."):
            return kind
    return plain
