"""Reduces the gradients of an optimizer of Keras 3: what JAX and PyTorch have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from horovod._train.numbering import JobNumber, NameNumbers
from horovod._train.optimizer_options import reduces
from horovod._train.process_set import group_of
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from horovod._keras.settings import ReductionSettings
    from horovod._rank.group import Group

_numbers = NameNumbers()


class Keras3Reducer(ABC):
    """Reduces gradients over the ranks of a process set.

    Args:
        settings: how.

    Attributes:
        settings: see above.
        weight: of this rank's gradients in the next step, if ranks have different numbers of
            samples: what the backend takes; None if all ranks count alike.
    """

    def __init__(self, settings: ReductionSettings) -> None:
        self.settings = settings
        self.weight: Any = None
        self._operation = f"{settings.name}_Allreduce"
        self._number = JobNumber(_numbers, [self._operation])
        self._local: set[Hashable] = set()
        self._local_layers: list[Any] = []

    def register_local(self, variable: Any) -> None:
        """Leaves the gradient of a variable out of the reduction."""
        self._local.add(key_of(variable))

    def register_local_layers(self, layers: Iterable[Any]) -> None:
        """Leaves the gradients of all weights of Keras layers out, also of layers yet to be built.

        Args:
            layers: what has ``trainable_weights``.
        """
        self._local_layers += layers

    @property
    def local_layers(self) -> Sequence[Any]:
        """The Keras layers whose gradients are left out."""
        return self._local_layers

    def local_keys(self) -> set[Hashable]:
        """The keys of the variables whose gradients are left out."""
        weights = [weight for layer in self._local_layers for weight in layer.trainable_weights]
        return self._local.union(map(key_of, weights)) if weights else self._local

    def reduce(self, gradients: Iterable[Any], variables: Iterable[Any]) -> list[Any]:
        """Reduces gradients; all ranks of the process set must call.

        Args:
            gradients: tensors of the backend, or None, which stays None.
            variables: of Keras, to which they belong.

        Returns:
            As many gradients. They are the given ones if this rank does not belong to the set, or
            is alone in it.

        Raises:
            UsageError: the process set is not registered, or a gradient is sparse and
                ``sparse_as_dense`` was not asked for.
            HorovodInternalError: the job failed.
            NotInitializedError: ``hvd.init()`` was not called.
        """
        gradients, variables = list(gradients), list(variables)
        group = group_of(self.settings.process_set)
        if not reduces(group):
            return gradients
        local = self.local_keys()
        places = [i for i, gradient in enumerate(gradients) if gradient is not None]
        shared = [i for i in places if key_of(variables[i]) not in local]
        own = set(places).difference(shared) if self.settings.scale_local_gradients else set()
        for i in own:
            gradients[i] = gradients[i] / group.size
        if shared:
            sent = [self.dense(gradients[i], variables[i]) for i in shared]
            names = [f"{i}.{variables[i].name}" for i in shared]
            chosen = [variables[i] for i in shared]
            reduced = self._reduce_shared(group, sent, chosen, names)
            for i, gradient in zip(shared, reduced, strict=True):
                gradients[i] = gradient
        return gradients

    def dense(self, gradient: Any, variable: Any) -> Any:
        """Return a gradient as it is added up and sent.

        Raises:
            UsageError: it is sparse, and ``sparse_as_dense`` is False.
        """
        if not self._is_sparse(gradient):
            return gradient
        if not self.settings.sparse_as_dense:
            raise UsageError(
                f"the gradient of {variable.path} is sparse; DistributedOptimizer sends it with "
                "sparse_as_dense=True only"
            )
        return self._as_dense(gradient)

    def prefix(self) -> str:
        """Return what the names of this optimizer's operations begin with in the current job."""
        return self._prefix(group_of(self.settings.process_set))

    def _prefix(self, group: Group) -> str:
        """Return what the names of this optimizer's operations begin with."""
        number = self._number.within(group)
        return self._operation if number == 1 else f"{self._operation}_{number}"

    @abstractmethod
    def _is_sparse(self, gradient: Any) -> bool:
        """Whether a gradient holds some of its rows only."""

    @abstractmethod
    def _as_dense(self, gradient: Any) -> Any:
        """Return a sparse gradient with all of its rows."""

    @abstractmethod
    def _reduce_shared(
        self, group: Group, gradients: list[Any], variables: list[Any], names: list[str]
    ) -> list[Any]:
        """Return the gradients of all ranks; there is at least one, and more than one rank.

        Args:
            group: the ranks.
            gradients: dense ones.
            variables: to which they belong.
            names: of the gradients, the same on all ranks.
        """


class _Key:
    """Equal to another key if both are of the same object, which is kept alive: an id is reused."""

    __slots__ = ("_object",)

    def __init__(self, keyed: object) -> None:
        self._object = keyed

    def __hash__(self) -> int:
        return id(self._object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other._object is self._object


def key_of(variable: Any) -> Hashable:
    """Return a key of a variable of Keras, which compares by its values and so is none."""
    return _Key(variable)
