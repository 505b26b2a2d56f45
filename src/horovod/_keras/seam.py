"""What differs between the backends of Keras, as far as the shared code needs it."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from horovod._keras.which import backend_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence


class Seam(ABC):
    """The functions of one backend."""

    @abstractmethod
    def is_variable(self, thing: Any) -> bool:
        """Whether something is a variable of Keras, or of the framework itself."""

    @abstractmethod
    def key(self, variable: Any) -> Hashable:
        """Return a key of a variable: the same for that of Keras and what it holds."""

    @abstractmethod
    def number(self, value: Any) -> float:
        """The value of a variable with one element, or of a number."""

    @abstractmethod
    def multiply(self, variable: Any, factor: float) -> None:
        """Multiplies the value of a variable."""

    @abstractmethod
    def broadcast(self, variables: Sequence[Any], root_rank: int, device: str) -> None:
        """Overwrites variables on all ranks with the values of the root; collective."""

    @abstractmethod
    def build(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Makes the variables of an optimizer, unless it has them."""

    @abstractmethod
    def variables_of(self, optimizer: Any) -> list[Any]:
        """All variables of an optimizer that has been built, in the same order on all ranks."""

    @abstractmethod
    def momentum_of(self, optimizer: Any, variables: Iterable[Any]) -> list[Any]:
        """The variables that momentum multiplies, where what is added to them holds the rate."""

    @abstractmethod
    def fetch_state(self, model: Any) -> None:
        """Let the variables of a model hold their values, if ``fit`` keeps these elsewhere."""

    @abstractmethod
    def training_of(self, model: Any) -> Any:
        """Return the ``hvd.elastic.Training`` that fits the model; None if none does."""

    @abstractmethod
    def choose_compiler(self, arguments: dict[str, Any]) -> None:
        """Change the arguments of ``compile`` to what works with a distributed optimizer.

        Raises:
            UsageError: the step is to be compiled by what cannot compile it.
        """

    @abstractmethod
    def adapt_compiled(self, model: Any) -> None:
        """Change what a model with a plain optimizer was compiled with, for a distributed one."""

    @abstractmethod
    def wrap(self, optimizer: Any, wrapping: Any) -> Any:
        """Make a distributed optimizer of a plain one; it shares its state."""

    @abstractmethod
    def local_steps(self) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
        """Return what stands in front of the class of an optimizer that takes local steps.

        Behind it comes the function that makes what brings the ranks together; see
        :class:`horovod._keras.reducing_optimizer.Wrapping`.
        """

    @property
    @abstractmethod
    def distribute(self) -> Callable[..., Any]:
        """Return the function behind ``DistributedOptimizer``."""


def seam_of(keras: Any) -> Seam:
    """Return the functions of the backend of a Keras.

    Args:
        keras: the package.
    """
    seam: Seam = importlib.import_module(f"horovod.{backend_of(keras)}.keras.seam").SEAM
    return seam
