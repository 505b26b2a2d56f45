"""Copy and pickle wrapped optimizers, and models that hold one: the copies reduce, too.

Keras copies by what it would save, and in a saved model the optimizer is a plain one.
"""

from __future__ import annotations

import functools
import threading
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from horovod._keras.compiling import prepare_compile
from horovod._keras.reducing_optimizer import ReducingOptimizer
from horovod._keras.seam import seam_of
from horovod._keras.which import generation_of, keras_of
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from horovod._keras.reducing_optimizer import Wrapping

_OWN = ("_reducer", "_agg_helper", "_reduced")

_lock = threading.Lock()
_done: set[tuple[type, str]] = set()


class Wrapped(NamedTuple):
    """Options that make a wrapped optimizer from a plain one.

    Attributes:
        plain_class: of the optimizer, for where Keras does not find it by its name.
        wrapping: what the class does; without groups of variables, if ``groups`` has them.
        groups: the places of variables that are reduced together; None without such lists.
        local: the places of variables whose gradients stay on their rank.
    """

    plain_class: type
    wrapping: Wrapping
    groups: tuple[tuple[int, ...], ...] | None
    local: tuple[int, ...]


def describe(optimizer: ReducingOptimizer, variables: Sequence[Any]) -> Wrapped:
    """Options that a copy of an optimizer needs to be wrapped in the same way.

    Args:
        optimizer: to be copied.
        variables: whose places are the same in the copy.

    Raises:
        UsageError: it was told of other variables, or of layers that have none yet; or it is
            between two passes of a step.
    """
    wrapping = optimizer.wrapping
    if wrapping.kind != "DistributedOptimizer":
        wrapping.reduce(optimizer)  # raises
    if wrapping.shard_state:
        raise UsageError(
            "a DistributedOptimizer with shard_state=True has a share of the state, so neither it "
            "nor its model can be copied: use hvd.save_model and hvd.load_model"
        )
    helper = optimizer._agg_helper
    if helper is not None and helper.is_between_passes(optimizer):
        raise UsageError(
            "a DistributedOptimizer with backward_passes_per_step can be copied between two steps "
            "only: the copy would lose the gradients of the passes since the last one"
        )
    key = seam_of(keras_of(type(optimizer))).key
    place_of = {key(variable): place for place, variable in enumerate(variables)}
    local = _places(_local_keys(optimizer), place_of)
    groups, placed = wrapping.settings.groups, None
    if isinstance(groups, tuple):
        wrapping = replace(wrapping, settings=replace(wrapping.settings, groups=None))
        placed = tuple(_places(group, place_of) for group in groups)
    return Wrapped(type(optimizer).plain_class, wrapping, placed, local)


def rewrap(optimizer: Any, wrapped: Wrapped, variables: Sequence[Any]) -> Any:
    """Wraps a plain optimizer as another one is.

    Args:
        optimizer: the copy, of the plain class.
        wrapped: what :func:`describe` returned.
        variables: which it trains, in the same order.
    """
    wrapping = wrapped.wrapping
    seam = seam_of(keras_of(type(optimizer)))
    if wrapped.groups is not None:
        groups = tuple(tuple(seam.key(variables[i]) for i in group) for group in wrapped.groups)
        wrapping = replace(wrapping, settings=replace(wrapping.settings, groups=groups))
    made = seam.wrap(optimizer, wrapping)
    for place in wrapped.local:
        made.register_local_var(variables[place])
    prepare_compile(keras_of(type(optimizer)))
    prepare_copies(keras_of(type(optimizer)))
    return made


def plain_of(optimizer: Any) -> Any:
    """An optimizer of the plain class with all that Keras knows of a wrapped one."""
    plain: Any = object.__new__(type(optimizer).plain_class)
    kept = {name: value for name, value in vars(optimizer).items() if name not in _OWN}
    object.__setattr__(plain, "__dict__", kept)
    return plain


def reduced_optimizer(optimizer: Any) -> tuple[Any, tuple[Any, ...]]:
    """For ``__reduce__`` of a wrapped optimizer that is copied without its model.

    Its variables belong to those of a model, so the copy begins with the configuration alone; a
    warning says so where there are some.
    """
    wrapped = describe(optimizer, ())
    if generation_of(keras_of(type(optimizer))) >= 3:
        return _unpickled_optimizer, (plain_of(optimizer), wrapped)
    if int(optimizer.iterations.numpy()):
        warnings.warn(
            "the copy of a DistributedOptimizer of Keras 2 has its configuration alone, without "
            "its state; copy the model, which holds both",
            stacklevel=3,
        )
    return _configured_optimizer, (optimizer.get_config(), wrapped)


def _unpickled_optimizer(plain: Any, wrapped: Wrapped) -> Any:
    return rewrap(plain, wrapped, ())


def _configured_optimizer(config: dict[str, Any], wrapped: Wrapped) -> Any:
    plain_class: Any = wrapped.plain_class
    return rewrap(plain_class.from_config(config), wrapped, ())


def prepare_copies(keras: Any) -> None:
    """Makes copies and pickles of models keep a wrapped optimizer; others are copied as ever.

    Args:
        keras: whose models.
    """
    with _lock:
        for name, keeping in (("__reduce__", _keeping_in_pickles), ("__deepcopy__", _keeping)):
            owner = next((kind for kind in keras.Model.__mro__ if name in vars(kind)), object)
            if owner is not object and (owner, name) not in _done:
                setattr(owner, name, keeping(getattr(owner, name)))
                _done.add((owner, name))


def _described(model: Any) -> Wrapped | None:
    optimizer = vars(model).get("optimizer") or vars(model).get("_optimizer")
    return (
        describe(optimizer, _weights_of(model))
        if isinstance(optimizer, ReducingOptimizer)
        else None
    )


def _weights_of(model: Any) -> Sequence[Any]:
    """Return the weights of a model, frozen ones too; none before it is built: Keras 2 raises."""
    weights: Sequence[Any] = model.weights if model.built else ()
    return weights


def _local_keys(optimizer: ReducingOptimizer) -> set[Hashable]:
    """Return the keys of local variables, also of layers that are frozen now."""
    layers = optimizer._reducer.local_layers
    unbuilt = [layer.name for layer in layers if not layer.built]
    if unbuilt:
        raise UsageError(
            f"a DistributedOptimizer with local_layers can be copied once these are built, but "
            f"{unbuilt[0]!r} is not: build the model first"
        )
    weights = (weight for layer in layers for weight in layer.weights)
    key = seam_of(keras_of(type(optimizer))).key
    return optimizer._reducer.local_keys().union(map(key, weights))


def _keeping_in_pickles(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def __reduce__(self: Any) -> Any:
        wrapped = _described(self)
        if wrapped is None:
            return plain(self)
        function, given, *rest = plain(self)
        return (_copied_model, (function, given, wrapped), *rest)

    return __reduce__


def _keeping(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def __deepcopy__(self: Any, memo: Any) -> Any:
        wrapped = _described(self)
        return plain(self, memo) if wrapped is None else _copied_model(plain, (self, memo), wrapped)

    return __deepcopy__


def _copied_model(function: Callable[..., Any], given: Any, wrapped: Wrapped) -> Any:
    """Return a function's copy of a saved model, with the optimizer wrapped, if it has one yet."""
    plain = wrapped.plain_class
    with keras_of(plain).utils.custom_object_scope({plain.__name__: plain}):
        model = function(*given)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or isinstance(optimizer, ReducingOptimizer):
        return model
    seam_of(keras_of(type(optimizer))).adapt_compiled(model)
    model.optimizer = rewrap(optimizer, wrapped, _weights_of(model))
    return model


def _places(keys: Any, place_of: dict[Hashable, int]) -> tuple[int, ...]:
    keys = list(keys)
    if any(key not in place_of for key in keys):
        raise UsageError(
            "a DistributedOptimizer that knows variables, by groups or register_local_var(), can "
            "only be copied together with the model that holds them: copy the model"
        )
    return tuple(sorted(place_of[key] for key in keys))
