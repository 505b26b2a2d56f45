"""A small training job for the tests of DistributedOptimizer, on threads or processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.torch.optimizer import ReducingOptimizer

F64 = torch.float64
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


def train_distributed(rank: int, recipe: Recipe, device: str = "cpu") -> list[torch.Tensor]:
    """Trains on this rank's data and a device; returns the parameters."""
    model = make_model(rank, recipe.dtype).to(device)
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
            (loss_of(model, x.to(device), y.to(device)) / recipe.passes).backward()
        if recipe.clip is None:
            wrapped.step()
            continue
        wrapped.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        with wrapped.skip_synchronize():
            wrapped.step()
    return [param.detach().cpu() for param in model.parameters()]


def train_alone(size: int, recipe: Recipe) -> list[torch.Tensor]:
    """Trains one process on the data of all ranks; returns the parameters."""
    model = make_model(0, recipe.dtype)
    optimizer = recipe.optimizer(model.parameters())
    factor = size if recipe.wrapping.get("op") == hvd.Sum else 1
    for step in range(STEPS):
        optimizer.zero_grad()
        for index in range(recipe.passes):
            data = [batch(rank, step * recipe.passes + index, recipe.dtype) for rank in range(size)]
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


def train_many(names: list[str]) -> dict[str, list[torch.Tensor]]:
    """Joins the job and trains by several recipes; runs on each rank of a job of processes."""
    torch.set_num_threads(1)
    hvd.init()
    trained = {name: train_distributed(hvd.rank(), RECIPES[name][0]) for name in names}
    hvd.shutdown()
    return trained


def train_many_on_gpu(names: list[str], spread: bool = False) -> dict[str, list[torch.Tensor]]:
    """As :func:`train_many`, on the first GPU, or spread over all of them."""
    torch.set_num_threads(1)
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() if spread else 0)
    trained = {name: train_distributed(hvd.rank(), RECIPES[name][0], "cuda") for name in names}
    hvd.shutdown()
    return trained


def train_through_a_restart() -> tuple[str, list[torch.Tensor]]:
    """Trains, loses a rank, joins a new job in the same process and goes on training.

    Returns:
        The error that the loss caused, and the parameters.
    """
    torch.set_num_threads(1)
    hvd.init()
    rank = hvd.rank()
    model = make_model(rank, torch.float64)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    plain = torch.optim.Adam(model.parameters())
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    message = ""
    loss_of(model, *batch(rank, 0, torch.float64)).backward()
    optimizer.step()
    saved = (model.state_dict(), optimizer.state_dict())
    hvd.barrier()
    if rank == 0:
        try:
            for step in range(1000):
                optimizer.zero_grad()
                loss_of(model, *batch(rank, step, torch.float64)).backward()
                optimizer.step()
        except hvd.HorovodInternalError as error:
            message = str(error)
    hvd.shutdown()
    hvd.init()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, *batch(rank, step, torch.float64)).backward()
        optimizer.step()
    hvd.shutdown()
    return message, [param.detach() for param in model.parameters()]


def sgd(model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def wrap(model: torch.nn.Module, **options: Any) -> ReducingOptimizer:
    return hvd.DistributedOptimizer(sgd(model), model.named_parameters(), **options)


def backward(model: torch.nn.Module, rank: int, step: int = 0) -> None:
    loss_of(model, *batch(rank, step, F64)).backward()


def local_gradients(rank: int, step: int = 0) -> list[torch.Tensor]:
    model = make_model(0, F64)
    backward(model, rank, step)
    return gradients(model)


def mean_gradients(size: int, step: int = 0) -> list[torch.Tensor]:
    everyones = [local_gradients(rank, step) for rank in range(size)]
    return [torch.stack(parts).mean(dim=0) for parts in zip(*everyones, strict=True)]


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [param.grad for param in model.parameters() if param.grad is not None]


def assert_close(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)


def assert_ranks_agree(model: torch.nn.Module) -> None:
    for param in model.parameters():
        everyones = hvd.allgather(param.detach().reshape(1, -1))
        assert (everyones == everyones[0]).all()
