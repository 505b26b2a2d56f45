"""What one process makes of a small model of PyTorch: trainings of ranks are compared with it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from spark_files import data_in, steps_of_all_ranks

from horovod.spark.common.datamodule import ParquetDataModule

if TYPE_CHECKING:
    from pathlib import Path

RATE = 0.02


def make_layers() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    ).double()


def make_optimizer(model: Any, rate: float = RATE) -> Any:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def one_process(task: Any, size: int, by_row: bool = False, whole_batches: bool = True) -> Any:
    """The same training on one process, whose batches are those of all ranks together."""
    steps = steps_of_all_ranks(task.data, size, task.epochs, whole_batches)
    return _trained_with(steps, RATE * size, task.passes, by_row)


def after_steps(folder: Path, *parts: tuple[int, range, Any, int]) -> Any:
    """A model that one process has trained with the rate of two ranks.

    Args:
        folder: that of the training that is compared with it.
        parts: of the training: size, epochs, stretches that came before, how many steps.
    """
    data = data_in(folder / "again", ParquetDataModule)
    steps = itertools.chain.from_iterable(
        itertools.islice(steps_of_all_ranks(data, size, epochs, False, stretches), count)
        for size, epochs, stretches, count in parts
    )
    return _trained_with(steps, RATE * 2)


def _trained_with(steps: Any, rate: float, passes: int = 1, by_row: bool = False) -> Any:
    model = make_layers()
    optimizer = make_optimizer(model, rate)
    for index, rows in enumerate(steps):
        loss = (model(torch.tensor(rows["x"])) - torch.tensor(rows["y"]).reshape(-1, 1)) ** 2
        if by_row:
            loss = loss * torch.tensor(rows["w"]).reshape(-1, 1)
        (loss.mean() / passes).backward()
        if (index + 1) % passes == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model


def assert_same(state: dict[str, Any], model: Any, prefix: str = "") -> None:
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state["model"][prefix + name], value, rtol=0, atol=1e-9)
