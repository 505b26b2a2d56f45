"""A training whose other threads submit, too: metrics, evaluation, objects, process sets."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch

import horovod.torch as hvd
from horovod._train.process_set import ProcessSet

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_STEPS = 500
_PAIR = (0, 2)
_PAUSE_S = 0.002  # between two calls of a thread beside the training


def make_model() -> torch.nn.Linear:
    """With the same parameters everywhere."""
    model = torch.nn.Linear(4, 3, dtype=torch.float64)
    for param in model.parameters():
        torch.nn.init.constant_(param, 0.5)
    return model


def loss_of(model: torch.nn.Linear, step: int, rank: int) -> torch.Tensor:
    """What a rank has to make smaller."""
    inputs = torch.full((2, 4), (step % 7 + rank) / 7, dtype=torch.float64)
    return (model(inputs) - rank).square().mean()


def train_alone(size: int) -> list[float]:
    """The parameters after the same training in one process."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        torch.stack([loss_of(model, step, rank) for rank in range(size)]).mean().backward()
        optimizer.step()
    return values_of(model)


def values_of(model: torch.nn.Linear) -> list[float]:
    """All parameters, one after the other."""
    return torch.cat([param.detach().flatten() for param in model.parameters()]).tolist()


def train_beside_busy_threads() -> tuple[list[float], list[int]]:
    """Runs on each rank.

    Returns:
        The parameters after the training, and the numbers of tensors that were alive during it.
    """
    hvd.init()
    pair = hvd.add_process_set(ProcessSet(_PAIR))
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )
    alive: list[int] = []
    over = threading.Event()

    def train() -> None:
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
            if step % 100 == 99:
                alive.append(sum(isinstance(each, torch.Tensor) for each in gc.get_objects()))
        over.set()

    # All ranks must call each thread equally often: the last word is that of rank 0.
    def until_over(name: str, submit: Callable[[int], None]) -> None:
        number, goes_on = 0, True
        while goes_on:
            submit(number)
            mine = torch.tensor([0.0 if over.is_set() else 1.0])
            goes_on = bool(hvd.broadcast(mine, 0, name=f"{name}.goes_on").item())
            number += 1
            over.wait(_PAUSE_S)

    def metrics(number: int) -> None:
        value = torch.full((50,), float(number + hvd.rank()))
        total = hvd.allreduce(value, name="metric", op=hvd.Sum)
        assert (total == 3 * number + 3).all()

    def evaluation(number: int) -> None:
        handles = [
            hvd.allgather_async(torch.full((2, 3), hvd.rank()), name=f"predictions.{part}")
            for part in range(3)
        ]
        for handle in handles:
            assert hvd.synchronize(handle)[:, 0].tolist() == [0, 0, 1, 1, 2, 2]

    def objects(number: int) -> None:
        said = hvd.broadcast_object({"epoch": number, "of": hvd.rank()}, 1, name="schedule")
        assert said == {"epoch": number, "of": 1}

    def sets(number: int) -> None:
        if pair.included():
            value = torch.full((9,), float(hvd.rank() * number))
            hvd.allreduce_(value, name="of_pair", op=hvd.Sum, process_set=pair)
            assert (value == 2 * number).all()

    bodies = [train] + [
        lambda name=name, submit=submit: until_over(name, submit)
        for name, submit in (("m", metrics), ("e", evaluation), ("o", objects), ("s", sets))
    ]
    with ThreadPoolExecutor(len(bodies)) as pool:
        for future in [pool.submit(body) for body in bodies]:
            future.result()
    hvd.shutdown()
    return values_of(model), alive
