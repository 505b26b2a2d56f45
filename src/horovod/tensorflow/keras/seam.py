"""What the shared code for Keras needs of TensorFlow, where Keras is of either generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from horovod._keras.elastic_fit import training_of
from horovod._keras.seam import Seam
from horovod.errors import UsageError
from horovod.tensorflow import optimizer_state, xla
from horovod.tensorflow.gradient_groups import variable_key
from horovod.tensorflow.keras.distributing import distribute
from horovod.tensorflow.keras.wrapping import wrap
from horovod.tensorflow.keras_generation import generation_of, keras_of
from horovod.tensorflow.placement import placed
from horovod.tensorflow.state import broadcast_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence


class TensorFlowSeam(Seam):
    """Eager mode, ``tf.function``, and graphs of version 1."""

    def is_variable(self, thing: Any) -> bool:
        return any(isinstance(v, tf.Variable) for v in (thing, getattr(thing, "value", None)))

    def key(self, variable: Any) -> Hashable:
        return variable_key(variable)

    def number(self, value: Any) -> float:
        return optimizer_state.number(value)

    def multiply(self, variable: Any, factor: float) -> None:
        optimizer_state.multiply(variable, factor)

    def broadcast(self, variables: Sequence[Any], root_rank: int, device: str) -> None:
        with placed(device) if device else tf.name_scope("broadcast"):
            update = broadcast_variables(variables, root_rank)
        if update is not None:
            # In a graph of version 1, which Keras 2 has if eager execution is disabled.
            tf.compat.v1.keras.backend.get_session().run(update)

    def build(self, optimizer: Any, variables: Sequence[Any]) -> None:
        optimizer_state.build(optimizer, variables)

    def variables_of(self, optimizer: Any) -> list[Any]:
        return optimizer_state.variables_of(optimizer)

    def momentum_of(self, optimizer: Any, variables: Iterable[Any]) -> list[Any]:
        return optimizer_state.gathered_momentum(optimizer, variables)

    def fetch_state(self, model: Any) -> None:
        """Do nothing: variables always hold their values."""

    def training_of(self, model: Any) -> Any:
        return training_of(model)

    def choose_compiler(self, arguments: dict[str, Any]) -> None:
        if arguments["jit_compile"] is True and not arguments["run_eagerly"]:
            raise UsageError(xla.REFUSAL)
        arguments["jit_compile"] = False

    def adapt_compiled(self, model: Any) -> None:
        # What Keras 3 chose for the plain optimizer; XLA cannot compile this one.
        if generation_of(keras_of(type(model))) >= 3:
            model.jit_compile = False

    def wrap(self, optimizer: Any, wrapping: Any) -> Any:
        return wrap(optimizer, wrapping)

    def local_steps(self) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
        # Only now: it needs Keras 3.
        from horovod.tensorflow.keras import local_steps

        return local_steps.TensorFlowLocalStepsOptimizer, local_steps.begin

    @property
    def distribute(self) -> Callable[..., Any]:
        return distribute


SEAM = TensorFlowSeam()
