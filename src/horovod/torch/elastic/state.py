"""The state of elastic training with PyTorch: modules, optimizers, samplers and plain objects."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from horovod._rank import context
from horovod._train.elastic.handlers import StateHandler
from horovod._train.elastic.state import ObjectState
from horovod.torch.elastic import checkpoint_tensors as checkpoint_tensors  # files can hold tensors
from horovod.torch.elastic.batch_sampler import ElasticBatchSampler
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.objects import broadcast_object
from horovod.torch.state import broadcast_optimizer_state, broadcast_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class TorchState(ObjectState):
    """The state of a training program with PyTorch.

    Modules, optimizers and samplers stay the same objects; so does everything else that has
    ``state_dict()`` and ``load_state_dict()``, for example learning rate schedulers. The rest is
    kept as copies. A snapshot of a tensor lies on the device of the tensor.

    Args:
        model, optimizer: attributes of these names; further ones can be given by keyword.
        kwargs: further attributes and their first values, the same names on all ranks.

    Raises:
        UsageError: an attribute would hide one of the state itself.

    Example:
        >>> state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, epoch=0, batch=0)
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(broadcast_object, context.rank, **kwargs, model=model, optimizer=optimizer)

    def _handler_of(self, value: Any) -> StateHandler | None:
        for kind, handler in _registry:
            if isinstance(value, kind):
                return handler(value)
        return super()._handler_of(value)


class _StateDict(StateHandler):
    """Handler that keeps a copy of a value's ``state_dict()``."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # A copy: optimizers keep the tensors that they are given.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def snapshot(self) -> Any:
        return self._saved

    def load(self, snapshot: Any) -> None:
        self._saved = snapshot
        self.restore()


class ModelStateHandler(_StateDict):
    """Keeps a ``torch.nn.Module``: parameters and buffers."""

    def snapshot(self) -> Any:
        # Modules note their versions where nobody would look.
        return self._saved, getattr(self._saved, "_metadata", None)

    def load(self, snapshot: Any) -> None:
        saved, metadata = snapshot
        if metadata is not None:
            saved._metadata = metadata
        super().load(saved)

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), self.root)


class OptimizerStateHandler(_StateDict):
    """Keeps a ``torch.optim.Optimizer``, or a ``DistributedOptimizer``; takes no step for it."""

    def sync(self) -> None:
        if isinstance(self.value, torch.optim.LBFGS):  # whose state is not one of parameters
            state = broadcast_object(self.value.state_dict(), self.root, "elastic.optimizer")
            self.value.load_state_dict(state)
        else:
            broadcast_optimizer_state(self.value, self.root)


class SamplerStateHandler(_StateDict):
    """Keeps an ``ElasticSampler`` or ``ElasticBatchSampler``, and divides anew what is left."""

    def sync(self) -> None:
        state = broadcast_object(self.value.state_dict(), self.root, "elastic.sampler")
        self.value.load_state_dict(state)

    def reset(self) -> None:
        self.value.reset()


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (ElasticBatchSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """Return the list of types and their handlers itself; the first that fits is used."""
    return _registry


def set_handler_registry(registry: Iterable[tuple[type, type[StateHandler]]]) -> None:
    """Replaces the registry for states that are made from now on.

    Args:
        registry: pairs of a type and its handler, which is made with the value alone.
    """
    global _registry
    _registry = list(registry)
