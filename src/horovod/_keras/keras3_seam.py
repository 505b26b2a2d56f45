"""The functions of Keras 3 that JAX and PyTorch have in common."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from horovod._keras import distributing
from horovod._keras.elastic_fit import training_of
from horovod._keras.host_values import broadcast_variables
from horovod._keras.local_steps.optimizer import LocalStepsOptimizer
from horovod._keras.reducer import key_of
from horovod._keras.seam import Seam
from horovod._keras.sharding.optimizer import ShardingOptimizer
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from horovod._keras.reducing_optimizer import ReducingOptimizer, Wrapping


class Keras3Seam(Seam):
    """Works with ``keras.Variable`` alone.

    Attributes:
        backend: the name that Keras gives it.
        optimizer_class: what stands in front of the class of an optimizer.
        sharding_class: the same for one whose state is in shares.
    """

    backend: str
    optimizer_class: type[ReducingOptimizer]
    sharding_class: type[ReducingOptimizer] = ShardingOptimizer

    @property
    @abstractmethod
    def begin(self) -> Callable[[Wrapping], tuple[Any, Any]]:
        """Return the function that makes the reducer of an optimizer; see :class:`Wrapping`."""

    @property
    @abstractmethod
    def begin_sharding(self) -> Callable[[Wrapping], tuple[Any, Any]]:
        """Return what :attr:`begin` returns, for an optimizer whose state is in shares."""

    @property
    @abstractmethod
    def begin_local_steps(self) -> Callable[[Wrapping], tuple[Any, Any]]:
        """Return what :attr:`begin` returns, for an optimizer that takes local steps."""

    def local_steps(self) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
        return LocalStepsOptimizer, self.begin_local_steps

    def is_variable(self, thing: Any) -> bool:
        return isinstance(thing, keras.Variable)

    def key(self, variable: Any) -> Hashable:
        return key_of(variable)

    def number(self, value: Any) -> float:
        return float(np.asarray(keras.ops.convert_to_numpy(value)))

    def multiply(self, variable: Any, factor: float) -> None:
        variable.assign(keras.ops.multiply(variable.value, factor))

    def broadcast(self, variables: Sequence[Any], root_rank: int, device: str) -> None:
        if device:
            raise UsageError(
                f"device={device!r} places operations of TensorFlow; with Keras on {self.backend} "
                "variables are sent through host memory, so leave it out"
            )
        broadcast_variables(variables, root_rank)

    def build(self, optimizer: Any, variables: Sequence[Any]) -> None:
        if not optimizer.built:
            optimizer.build(variables)

    def variables_of(self, optimizer: Any) -> list[Any]:
        return list(optimizer.variables)

    def momentum_of(self, optimizer: Any, variables: Iterable[Any]) -> list[Any]:
        if not getattr(optimizer, "momentum", 0.0):
            return []
        gathered = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None)
        return [variable for variable in gathered or [] if variable is not None]

    def fetch_state(self, model: Any) -> None:
        """Do nothing: variables always hold their values."""

    def abandon_state(self, model: Any) -> None:
        """Let the variables alone count, whatever a step that failed has left elsewhere."""

    def training_of(self, model: Any) -> Any:
        return training_of(model)

    def choose_compiler(self, arguments: dict[str, Any]) -> None:
        """Change nothing."""

    def adapt_compiled(self, model: Any) -> None:
        """Change nothing."""

    def wrap(self, optimizer: Any, wrapping: Any) -> Any:
        return distributing.wrap(self, optimizer, wrapping)

    @property
    def distribute(self) -> Callable[..., Any]:
        return partial(distributing.distribute, self)
