"""The strategy by which a Trainer of Lightning 2 trains on the ranks of Horovod."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.rank_zero import rank_zero_only

import horovod.torch as hvd
from horovod.errors import UsageError
from horovod.spark.torch.plain import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike
    from types import ModuleType

    from horovod.torch.compression import Compressor

_RATES = ("lr", "initial_lr")


class HorovodMethods:
    """The methods of the strategy, whichever Lightning has its base class.

    Learning rates are multiplied by the number of ranks; in checkpoints, they are those for one.

    Attributes:
        scale: the number of ranks with which the training has begun.
        saves_on_all_ranks: whether each rank writes checkpoints to its own disk, as it may be the
            only one that is left.
    """

    strategy_name = "horovod"
    compression: Any
    passes: int
    scale: int
    saves_on_all_ranks: bool
    parallel_devices: list[torch.device]
    lightning_module: Any
    lr_scheduler_configs: Any
    optimizers: Any
    model: Any
    checkpoint_io: Any

    @property
    def root_device(self) -> torch.device:
        """The device of this rank."""
        return self.parallel_devices[0]

    @property
    def global_rank(self) -> int:
        """Return ``hvd.rank()``."""
        return hvd.rank()

    @property
    def local_rank(self) -> int:
        """Return ``hvd.local_rank()``."""
        return hvd.local_rank()

    @property
    def node_rank(self) -> int:
        """Return ``hvd.cross_rank()``."""
        return hvd.cross_rank()

    @property
    def world_size(self) -> int:
        """Return ``hvd.size()``."""
        return hvd.size()

    @property
    def is_global_zero(self) -> bool:
        """Whether this is rank 0."""
        return hvd.rank() == 0

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return the arguments of a distributed sampler."""
        return {"num_replicas": hvd.size(), "rank": hvd.rank()}

    def set_world_ranks(self) -> None:
        """Lets only rank 0 print and write."""
        rank_zero_only.rank = hvd.rank()

    def model_to_device(self) -> None:
        """Moves the model to the device of this rank."""
        self.model.to(self.root_device)

    def setup_optimizers(self, trainer: object) -> None:
        """Makes the optimizers of the module, and lets them use the gradients of all ranks."""
        super().setup_optimizers(trainer)  # type: ignore[misc]
        hvd.broadcast_parameters(self.lightning_module.state_dict(), root_rank=0)
        for config in self.lr_scheduler_configs:
            rates = getattr(config.scheduler, "base_lrs", [])
            rates[:] = [rate * self.scale for rate in rates]
        self.optimizers = [self._distributed(optimizer) for optimizer in self.optimizers]

    def optimizer_state(self, optimizer: object) -> dict[str, Any]:
        """The state of an optimizer, with the learning rates for one rank."""
        state: dict[str, Any] = super().optimizer_state(optimizer)  # type: ignore[misc]
        groups = [dict(group) for group in state["param_groups"]]
        multiply_rates(groups, 1 / self.scale)
        return {**state, "param_groups": groups}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, object]) -> None:
        """Goes on with saved states, with the learning rates for all ranks."""
        super().load_optimizer_state_dict(checkpoint)  # type: ignore[misc]
        for optimizer in self.optimizers:
            multiply_rates(optimizer.param_groups, self.scale)

    def save_checkpoint(
        self, checkpoint: dict[str, object], filepath: object, storage_options: object = None
    ) -> None:
        """Save a checkpoint of tensors, numbers and texts.

        Raises:
            UsageError: a part of the training has a state with something else in it.
        """
        found = _without_objects(checkpoint)
        if self.saves_on_all_ranks:
            self.checkpoint_io.save_checkpoint(found, filepath, storage_options)
        else:
            super().save_checkpoint(found, filepath, storage_options)  # type: ignore[misc]

    def remove_checkpoint(self, filepath: str | PathLike[str]) -> None:
        """Remove what :meth:`save_checkpoint` has written."""
        if self.saves_on_all_ranks or self.is_global_zero:
            self.checkpoint_io.remove_checkpoint(filepath)

    def reduce(self, tensor: object, group: object = None, reduce_op: object = "mean") -> Any:
        """A value over all ranks: their mean, or their sum."""
        name = str(getattr(reduce_op, "name", reduce_op)).lower()
        given = torch.as_tensor(tensor, device=self.root_device)
        return hvd.allreduce(given, op=hvd.Sum if name == "sum" else hvd.Average)

    def barrier(self, *args: object, **kwargs: object) -> None:
        """Waits for all ranks."""
        hvd.barrier()

    def broadcast(self, obj: object, src: int = 0) -> Any:
        """The object of one rank."""
        return hvd.broadcast_object(obj, root_rank=src)

    def all_gather(
        self, tensor: torch.Tensor, group: object = None, sync_grads: bool = False
    ) -> torch.Tensor:
        """The tensors of all ranks, one after the other in a new first dimension."""
        return hvd.allgather(tensor.unsqueeze(0))

    def teardown(self) -> None:
        """Brings the module back to the CPU."""
        self.lightning_module.cpu()

    def _distributed(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        multiply_rates(optimizer.param_groups, self.scale)
        own = {id(param) for group in optimizer.param_groups for param in group["params"]}
        named = self.lightning_module.named_parameters()
        return hvd.DistributedOptimizer(
            optimizer,
            named_parameters=[(name, param) for name, param in named if id(param) in own],
            compression=self.compression,
            backward_passes_per_step=self.passes,
        )


def make_strategy(
    library: ModuleType,
    device: torch.device,
    compression: type[Compressor],
    passes: int,
    *,
    scale: int,
    saves_on_all_ranks: bool,
) -> HorovodMethods:
    """Return the strategy for the Trainer of a Lightning.

    Args:
        library: ``lightning.pytorch`` or ``pytorch_lightning``.
        device: of this rank.
        compression: how gradients travel.
        passes: batches whose gradients are one step.
        scale, saves_on_all_ranks: see :class:`HorovodMethods`.
    """
    base = library.strategies.ParallelStrategy
    strategy: HorovodMethods = type("HorovodStrategy", (HorovodMethods, base), {})(
        parallel_devices=[device],
        # Otherwise Lightning looks for a launcher, and loads an MPI library to ask it.
        cluster_environment=_environments(library).LightningEnvironment(),
    )
    strategy.compression = compression
    strategy.passes = passes
    strategy.scale = scale
    strategy.saves_on_all_ranks = saves_on_all_ranks
    return strategy


def _without_objects(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Without hyperparameters that are objects: a training that goes on does not need them."""
    found = {}
    for name, value in checkpoint.items():
        if name == "hparams_type":  # their class
            continue
        try:
            found[name] = plain(value, name)
        except UsageError:
            if not name.endswith("hyper_parameters"):
                raise
    return found


def _environments(library: ModuleType) -> ModuleType:
    root = "lightning.fabric" if library.__name__ == "lightning.pytorch" else "lightning_fabric"
    return importlib.import_module(f"{root}.plugins.environments")


def multiply_rates(groups: list[dict[str, Any]], factor: float) -> None:
    """Multiplies the learning rates of groups of parameters."""
    for group in groups:
        for name in _RATES:
            if name in group:
                group[name] = group[name] * factor
