"""States of elastic training: variables, models and optimizers of TensorFlow and Keras."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._keras.sharding.whole import refuse_in_elastic_state
from horovod._rank import context
from horovod._train.elastic.state import ObjectState
from horovod.errors import UsageError
from horovod.tensorflow.elastic.variables import VariablesHandler, is_variable
from horovod.tensorflow.keras_generation import keras_of, kind_of
from horovod.tensorflow.objects import broadcast_object
from horovod.tensorflow.optimizer_state import build, variables_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horovod._train.elastic.handlers import StateHandler
    from horovod.tensorflow.interface_types import Model, Optimizer, Session, Variable


class _VariablesState(ObjectState):
    """Knows what has variables, wherever it stands among the attributes."""

    def __init__(self, **kwargs: Any) -> None:
        # Later on, the caller need not be in the graph of its variables.
        self._in_graph = not tf.executing_eagerly()
        super().__init__(broadcast_object, context.rank, **kwargs)

    def _handler_of(self, value: Any) -> StateHandler | None:
        handler = partial(VariablesHandler, value, session=self._session_of_values)
        if is_variable(value):
            return handler(_itself)
        if isinstance(value, list | tuple) and value and all(map(is_variable, value)):
            return handler(_listed)
        if isinstance(value, tf.compat.v1.train.Optimizer):
            return handler(_called)
        if keras_of(type(value)) is not None and hasattr(value, "variables"):
            if hasattr(value, "apply_gradients"):
                return handler(self._variables_of_optimizer)
            return handler(_shared_of_model, own=_own_of_model)
        if isinstance(value, tf.Module):
            return handler(_of_module)
        return super()._handler_of(value)

    def _session_of_values(self) -> Any:
        """The session that holds the values; None in eager mode."""
        raise NotImplementedError

    def _trained_by(self, optimizer: Any) -> list[Any] | None:
        """Return what an optimizer trains; None if that is unknown."""
        return None

    def _variables_of_optimizer(self, optimizer: Any) -> list[Any]:
        """All of them: a newcomer makes those that the others made in their first step."""
        trained = self._trained_by(optimizer)
        if trained is not None:
            build(optimizer, trained)
        elif not getattr(optimizer, "built", True):
            raise UsageError(
                f"the optimizer {kind_of(optimizer)} has no variables yet, and the state does not "
                "know what it trains: call its build(model.trainable_variables) first"
            )
        return variables_of(optimizer)


class TensorFlowState(_VariablesState):
    """Variables, and any further objects, in eager mode or a graph of ``tf.compat.v1``.

    Args:
        variables: what to keep; None or an empty list for all global variables of the default
            graph.
        session: that holds their values; in a graph the default session when the state is used if
            None.
        kwargs: further attributes and their first values, the same names on all ranks. Models,
            optimizers and variables among them keep being the same objects.

    Attributes:
        variables: see above.
        session: see above.

    Raises:
        UsageError: ``variables`` is missing in eager mode, which has no list of them.

    Example:
        >>> state = hvd.elastic.TensorFlowState(session=session, batch=0)
    """

    def __init__(
        self,
        variables: Iterable[Variable] | None = None,
        session: Session | None = None,
        **kwargs: object,
    ) -> None:
        self.session = session
        found = list(variables or ())
        if not found:
            if tf.executing_eagerly():
                raise UsageError(
                    "TensorFlowState(variables=…): there is no list of global variables in eager "
                    "mode; give the variables, or use TensorFlowKerasState(model, optimizer)"
                )
            found = tf.compat.v1.global_variables()
        super().__init__(variables=found, **kwargs)

    def _session_of_values(self) -> Any:
        session = self.session or (tf.compat.v1.get_default_session() if self._in_graph else None)
        if session is None and self._in_graph:
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                "the state needs the session that holds its variables: give session=…, or use it "
                "inside of `with session.as_default()`",
            )
        return session


class TensorFlowKerasState(_VariablesState):
    """A model, its optimizer, and any further objects.

    The weights of the model and the variables of the optimizer are sent to newcomers. The state of
    random numbers stays each rank's own.

    Args:
        model: of Keras 2 or 3, with its weights.
        optimizer: that of the model if None.
        backend: of Keras, for ``tf.compat.v1`` graphs, whose session it holds; that of ``tf.keras``
            if None.
        kwargs: further attributes and their first values, such as ``epoch=0``; the same names on
            all ranks. Models, optimizers and variables among them keep being the same objects.

    Attributes:
        model: see above.
        optimizer: see above.
        backend: see above.

    Raises:
        UsageError: the model has no weights yet; call its ``build`` first.

    Example:
        >>> state = hvd.elastic.TensorFlowKerasState(model, epoch=0, batch=0)
    """

    model: Any
    optimizer: Any

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer | None = None,
        backend: object = None,
        **kwargs: object,
    ) -> None:
        if hasattr(model, "build") and not getattr(model, "built", True):
            raise UsageError(
                f"the model {getattr(model, 'name', kind_of(model))!r} has no weights that a state "
                "could keep: call model.build(input_shape), or the model on a batch, first"
            )
        self.backend: Any = backend
        optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        refuse_in_elastic_state(optimizer)
        super().__init__(model=model, optimizer=optimizer, **kwargs)

    def _session_of_values(self) -> Any:
        if not self._in_graph:
            return None
        return (self.backend or tf.compat.v1.keras.backend).get_session()

    def _trained_by(self, optimizer: Any) -> list[Any] | None:
        mine = optimizer is self.optimizer
        return list(self.model.trainable_variables) if mine else None


def _itself(variable: Any) -> list[Any]:
    return [variable]


def _listed(variables: Iterable[Any]) -> list[Any]:
    return list(variables)


def _called(optimizer: Any) -> list[Any]:
    return list(optimizer.variables())


def _of_module(module: Any) -> list[Any]:
    return list(module.variables)


def _shared_of_model(model: Any) -> list[Any]:
    return list(getattr(model, "weights", model.variables))


def _own_of_model(model: Any) -> list[Any]:
    shared = {id(variable) for variable in _shared_of_model(model)}
    return [variable for variable in model.variables if id(variable) not in shared]
