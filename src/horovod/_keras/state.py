"""The state of elastic training with Keras 3 on JAX and PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from horovod._keras.host_values import read, send, write
from horovod._keras.sharding.handler import ShardingHandler
from horovod._keras.sharding.whole import is_sharding
from horovod._keras.which import kind_of
from horovod._rank import context
from horovod._train.elastic.checkpoint.data import Lent
from horovod._train.elastic.handlers import StateHandler
from horovod._train.elastic.state import ObjectState
from horovod._train.object_functions import broadcast_object
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

    from horovod._keras.keras3_seam import Keras3Seam

__all__ = ["Keras3State"]

_NAME = "elastic.variables"


class Keras3State(ObjectState):
    """A model, its optimizer, and any further objects.

    The weights of the model and the variables of the optimizer are sent to newcomers. The state of
    random numbers stays each rank's own.

    Args:
        model: of Keras, with its weights.
        optimizer: that of the model if None.
        kwargs: further attributes and their first values, such as ``epoch=0, batch=0``; the same
            names on all ranks. Models, optimizers and variables among them keep being the same
            objects.

    Attributes:
        model: see above.
        optimizer: see above.

    Raises:
        UsageError: the model has no weights yet; call its ``build`` first.
    """

    model: Any
    optimizer: Any
    epoch: int
    batch: int
    _seam: Keras3Seam

    def __init__(
        self, model: keras.Model, optimizer: keras.Optimizer | None = None, **kwargs: object
    ) -> None:
        if not model.built:
            raise UsageError(
                f"the model {model.name!r} has no weights that a state could keep: call "
                "model.build(input_shape), or the model on a batch, first"
            )
        kwargs.pop("backend", None)  # which counts for graphs of TensorFlow
        optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        # Handlers ask for it before it is an attribute.
        self._fitted = model
        super().__init__(broadcast_object, context.rank, model=model, optimizer=optimizer, **kwargs)

    def save(self) -> None:
        self._seam.fetch_state(self._fitted)
        super().save()

    def _prepare(self) -> None:
        if self._in_parts():
            self._seam.fetch_state(self._fitted)
        super()._prepare()

    def reset(self) -> None:
        if self._in_parts():  # whose values elsewhere have the shapes of before
            self._seam.abandon_state(self._fitted)
        super().reset()

    def _in_parts(self) -> list[ShardingHandler]:
        return [each for each in self._handlers.values() if isinstance(each, ShardingHandler)]

    def restore(self) -> None:
        self._seam.abandon_state(self._fitted)
        super().restore()

    def sync(self) -> None:
        self._seam.fetch_state(self._fitted)
        super().sync()

    def _handler_of(self, value: Any) -> StateHandler | None:
        if isinstance(value, FittedMetrics):
            return VariablesHandler(value, lambda _: [], lambda each: each.model.metrics_variables)
        if isinstance(value, keras.Variable):
            return VariablesHandler(value, lambda variable: [variable])
        if (
            isinstance(value, list | tuple)
            and value
            and all(isinstance(each, keras.Variable) for each in value)
        ):
            return VariablesHandler(value, list)
        if is_sharding(value):
            self._variables_of_optimizer(value)
            return ShardingHandler(value)
        if isinstance(value, keras.optimizers.Optimizer):
            return VariablesHandler(value, self._variables_of_optimizer)
        if isinstance(value, keras.layers.Layer):
            return VariablesHandler(value, lambda layer: list(layer.weights), _own_of_layer)
        return super()._handler_of(value)

    def _variables_of_optimizer(self, optimizer: Any) -> list[Any]:
        """All of them: a newcomer makes those that the others made in their first step."""
        if not optimizer.built:
            fitted: Any = self._fitted
            is_of_model = optimizer is getattr(fitted, "optimizer", None)
            if not is_of_model:
                raise UsageError(
                    f"the optimizer {kind_of(optimizer)} has no variables yet, and the state does "
                    "not know what it trains: call its build(model.trainable_variables) first"
                )
            optimizer.build(fitted.trainable_variables)
        return list(optimizer.variables)


class FittedMetrics:
    """The metrics of a model as a part of a state: each rank goes back to its own values.

    Args:
        model: of Keras.

    Attributes:
        model: see above.
    """

    def __init__(self, model: Any) -> None:
        self.model = model


class VariablesHandler(StateHandler):
    """Keeps the variables of an object in host memory, and sends them to all ranks.

    Args:
        value: the object.
        shared: its variables that all ranks have the same values of; all that exist later on must
            exist when this is called.
        own: further variables, of which each rank keeps its own values.
    """

    def __init__(
        self,
        value: Any,
        shared: Callable[[Any], list[Any]],
        own: Callable[[Any], Iterable[Any]] = lambda _: (),
    ) -> None:
        super().__init__(value)
        self._shared = shared
        self._own = own
        self._variables: list[Any] = []
        self._saved: list[np.ndarray] = []
        self.save()

    def save(self) -> None:
        self._variables = [*self._shared(self.value), *self._own(self.value)]
        self._saved = read(self._variables)

    def restore(self) -> None:
        write(self._variables, self._saved)

    def snapshot(self) -> list[np.ndarray]:
        return Lent(self._saved)

    def load(self, snapshot: list[np.ndarray]) -> None:
        self._variables = [*self._shared(self.value), *self._own(self.value)]
        write(self._variables, snapshot)
        self.save()

    def sync(self) -> None:
        shared = self._shared(self.value)
        if not shared:
            return
        values = read(shared)
        send(shared, values, self.root, _NAME)
        write(shared, values)


def _own_of_layer(layer: Any) -> list[Any]:
    shared = {id(variable) for variable in layer.weights}
    return [variable for variable in layer.variables if id(variable) not in shared]
