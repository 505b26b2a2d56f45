"""The state of elastic training with PyTorch: modules, optimizers, samplers and plain objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from horovod._rank import context
from horovod._train.elastic.handlers import StateDictHandler, StateHandler
from horovod._train.elastic.state import ObjectState
from horovod.torch.elastic import checkpoint_tensors as checkpoint_tensors  # files can hold tensors
from horovod.torch.elastic.batch_sampler import ElasticBatchSampler
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.objects import broadcast_object
from horovod.torch.sharded_optimizer import ShardedOptimizer
from horovod.torch.state import broadcast_optimizer_state, broadcast_parameters

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "ShardedOptimizerStateHandler",
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


class ModelStateHandler(StateDictHandler):
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


class OptimizerStateHandler(StateDictHandler):
    """Keeps a ``torch.optim.Optimizer``, or a ``DistributedOptimizer``; takes no step for it."""

    def sync(self) -> None:
        if isinstance(self.value, torch.optim.LBFGS):  # whose state is not one of parameters
            super().sync()
        else:
            broadcast_optimizer_state(self.value, self.root)


class ShardedOptimizerStateHandler(StateHandler):
    """Keeps a ``DistributedOptimizer`` with ``shard_state=True``, whose shares move with the ranks.

    A snapshot is the whole state, gathered on every rank, so that no lost rank takes a share with
    it. That costs an allgather of the state for each commit, and memory for all of it on each rank.
    """

    value: ShardedOptimizer

    def __init__(self, value: ShardedOptimizer) -> None:
        super().__init__(value)
        # The whole state that was gathered or loaded last, and of which version it is.
        self._whole: dict[str, Any] | None = None
        self._version = -1
        self._saved: dict[str, Any] | None = None

    def prepare(self) -> None:
        if self._current() is None:
            self._keep(self.value.state_dict())

    def save(self) -> None:
        self._saved = self._current()
        assert self._saved is not None, "prepare() comes before save()"

    def restore(self) -> None:
        if self._saved is not None:  # else no rank has trained yet
            self._load(self._saved)

    def reset(self) -> None:
        if (whole := self._current()) is not None:
            self._load(whole)

    def sync(self) -> None:
        own: tuple[dict[str, Any] | None, list[dict[str, Any]]] = None, []
        if context.rank() == self.root:
            own = self._current(), self.value.numbered_options()
        whole, options = broadcast_object(own, self.root)
        if whole is None:  # when a job begins, the root has its share alone, and so has everyone
            whole = self.value.state_dict()
        self._load({**whole, "param_groups": options})

    def snapshot(self) -> Any:
        return self._saved

    def load(self, snapshot: Any) -> None:
        self._saved = snapshot
        self.restore()

    def set_value(self, value: ShardedOptimizer) -> None:
        """Replaces the optimizer and takes a snapshot; collective."""
        self.value, self._whole = value, None
        self.prepare()
        self.save()

    def _current(self) -> dict[str, Any] | None:
        """Return the whole state as it is now, with the present options; None if unknown."""
        if self._whole is None or self._version != self.value.version:
            return None
        return {**self._whole, "param_groups": self.value.numbered_options()}

    def _keep(self, whole: dict[str, Any]) -> None:
        self._whole, self._version = whole, self.value.version

    def _load(self, whole: dict[str, Any]) -> None:
        self.value.load_state_dict(whole)
        self._keep(whole)


class SamplerStateHandler(StateDictHandler):
    """Keeps an ``ElasticSampler`` or ``ElasticBatchSampler``, and divides anew what is left."""

    def reset(self) -> None:
        self.value.reset()


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (ShardedOptimizer, ShardedOptimizerStateHandler),
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
