"""A small training job for the tests of DistributedOptimizer, with threads or processes as ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH_ROWS = 6
STEPS = 20


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        dtype: of parameters and data.
        optimizer: makes the plain optimizer.
        passes: backward passes per step.
        wrapping: options of DistributedOptimizer; "groups" may be "layers" for a list of lists.
        clip: the greatest norm of the gradients, or None.
    """

    dtype: torch.dtype = torch.float64
    optimizer: Callable[[Any], torch.optim.Optimizer] = field(
        default=lambda params: torch.optim.SGD(params, lr=0.005, momentum=0.9)
    )
    passes: int = 1
    wrapping: dict[str, Any] = field(default_factory=dict)
    clip: float | None = None


def make_model(seed: int, dtype: torch.dtype) -> torch.nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 7), torch.nn.Linear(7, 2)
    ).to(dtype)
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape, generator=generator, dtype=torch.float64) * 0.5)
    return model


def batch(rank: int, step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(BATCH_ROWS, 5, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.stack([x.sum(dim=1), x.prod(dim=1)], dim=1)


def loss_of(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(x), y)


def train_distributed(rank: int, recipe: Recipe) -> list[torch.Tensor]:
    """Trains on this rank's data; returns the parameters."""
    model = make_model(rank, recipe.dtype)
    optimizer = recipe.optimizer(model.parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    wrapping = dict(recipe.wrapping)
    if wrapping.get("groups") == "layers":
        wrapping["groups"] = [list(model[0].parameters()), [model[3].weight]]
    wrapped = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), backward_passes_per_step=recipe.passes, **wrapping
    )
    for step in range(STEPS):
        wrapped.zero_grad()
        for index in range(recipe.passes):
            x, y = batch(rank, step * recipe.passes + index, recipe.dtype)
            (loss_of(model, x, y) / recipe.passes).backward()
        if recipe.clip is None:
            wrapped.step()
            continue
        wrapped.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        with wrapped.skip_synchronize():
            wrapped.step()
    return [param.detach() for param in model.parameters()]


def train_alone(size: int, recipe: Recipe) -> list[torch.Tensor]:
    """Trains one process on the data of all ranks; returns the parameters."""
    model = make_model(0, recipe.dtype)
    optimizer = recipe.optimizer(model.parameters())
    factor = size if recipe.wrapping.get("op") == hvd.Sum else 1
    for step in range(STEPS):
        optimizer.zero_grad()
        for index in range(recipe.passes):
            data = [
                batch(rank, step * recipe.passes + index, recipe.dtype) for rank in range(size)
            ]
            x, y = (torch.cat(part) for part in zip(*data, strict=True))
            (loss_of(model, x, y) * factor / recipe.passes).backward()
        if recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
    return [param.detach() for param in model.parameters()]


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=0.01)


RECIPES: dict[str, tuple[Recipe, float]] = {
    # The second number is the tolerance relative to the largest parameter.
    "sgd": (Recipe(), 1e-9),
    "adam": (Recipe(optimizer=adam), 1e-9),
    "sgd_float32": (Recipe(dtype=torch.float32), 1e-4),
    "adam_float32": (Recipe(dtype=torch.float32, optimizer=adam), 1e-4),
    "sum": (Recipe(wrapping={"op": hvd.Sum}), 1e-9),
    "two_groups": (Recipe(wrapping={"groups": 2}), 1e-9),
    "many_groups": (Recipe(wrapping={"groups": 50}), 1e-9),
    "listed_groups": (Recipe(wrapping={"groups": "layers"}), 1e-9),
    "predivide": (Recipe(wrapping={"gradient_predivide_factor": 2.0}), 1e-9),
    "predivide_groups": (Recipe(wrapping={"gradient_predivide_factor": 2.0, "groups": 2}), 1e-9),
    "passes": (Recipe(passes=2), 1e-9),
    "passes_groups": (Recipe(passes=3, optimizer=adam, wrapping={"groups": 2}), 1e-9),
    "fp16": (Recipe(wrapping={"compression": hvd.Compression.fp16}), 1e-2),
    "bf16_groups": (Recipe(wrapping={"compression": hvd.Compression.bf16, "groups": 2}), 5e-2),
    "clip": (Recipe(clip=0.5), 1e-9),
}


def check_equal(
    everyones: list[list[torch.Tensor]], alone: list[torch.Tensor], tolerance: float
) -> None:
    """All ranks hold the same bits, and those are what one process computes."""
    largest = max(float(param.abs().max()) for param in alone)
    for params in everyones:
        for mine, first, expected in zip(params, everyones[0], alone, strict=True):
            assert torch.equal(mine, first), "ranks differ"
            assert float((mine - expected).abs().max()) <= tolerance * largest
