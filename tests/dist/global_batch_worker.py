"""A worker of test_elastic_global_batch.py that trains with a constant global batch.

Its plan: "dies": the generation, epoch and batch in which it kills itself, or None; "seed": of the
orders.
"""

from __future__ import annotations

import atexit
import os
import signal
from typing import TYPE_CHECKING, Any

import torch

import horovod.torch as hvd
from horovod._train.elastic.ledger import order_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

LENGTH, BATCH_SIZE, GLOBAL_BATCH, EPOCHS, RATE = 250, 4, 16, 6, 0.05
SIZES_OF_STEPS = [*[GLOBAL_BATCH] * (LENGTH // GLOBAL_BATCH), LENGTH % GLOBAL_BATCH]


def samples() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs, targets that are not quite a function of them, and the number of each."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(LENGTH, 8, generator=generator)
    noise = 0.3 * torch.randn(LENGTH, 1, generator=generator)
    return inputs, inputs[:, :1] * inputs[:, 1:2] + noise, torch.arange(LENGTH)


class Model(torch.nn.Module):
    """A small network, and one parameter for each sample, which counts it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        )
        self.times = torch.nn.Parameter(torch.zeros(LENGTH))

    def loss_of(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean over samples."""
        return torch.nn.functional.mse_loss(self.layers(inputs), targets)

    def counted(self, indices: torch.Tensor) -> torch.Tensor:
        """Return what a step changes by its rate over its samples for each of them, and no more."""
        return -self.times[indices].mean()


def optimizer_of(model: Model) -> torch.optim.SGD:
    """Return a plain one."""
    return torch.optim.SGD(
        [
            {"params": model.layers.parameters(), "momentum": 0.9},
            {"params": [model.times], "lr": 1.0},
        ],
        lr=RATE,
    )


def final_loss(model: Model) -> float:
    """Return the loss over all samples."""
    with torch.no_grad():
        return float(model.loss_of(*samples()[:2]))


def train_alone(seed: int) -> tuple[float, list[float]]:
    """Train undisturbed in one process, a whole step at once; returns the loss and the counts."""
    model = Model()
    optimizer = optimizer_of(model)
    inputs, targets, _ = samples()
    for epoch in range(EPOCHS):
        order = list(order_of(LENGTH, seed + epoch))
        for first in range(0, LENGTH, GLOBAL_BATCH):
            step = torch.tensor(order[first : first + GLOBAL_BATCH])
            optimizer.zero_grad()
            (model.loss_of(inputs[step], targets[step]) + model.counted(step)).backward()
            optimizer.step()
    return final_loss(model), model.times.tolist()


def train(plan: Mapping[str, Any], pipe: Connection) -> None:
    """What a script does."""
    hvd.init()
    model = Model()
    optimizer = hvd.DistributedOptimizer(optimizer_of(model))
    training = hvd.elastic.Training(model=model, optimizer=optimizer, commit_every_s=0.02)
    values = training.track(steps=[], of_step=0)
    for epoch in training.epochs(EPOCHS):
        batches = training.batches(
            samples(), BATCH_SIZE, seed=plan["seed"], global_batch=GLOBAL_BATCH
        )
        for number, (inputs, targets, indices) in enumerate(batches):
            if (hvd.elastic.generation(), epoch, number) == plan.get("dies"):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            (model.loss_of(inputs, targets) + model.counted(indices)).backward()
            optimizer.step()
            values.of_step += training.samples
            if training.ends_step:
                with training.guard():
                    total = hvd.allreduce(torch.tensor([values.of_step]), op=hvd.Sum)
                    values.steps.append((hvd.size(), int(total)))
                values.of_step = 0
    report = {"loss": final_loss(model), "times": model.times.tolist(), "steps": values.steps}
    pipe.send(report | {"rate": optimizer.param_groups[0]["lr"]})


def main(environ: Mapping[str, str], plan: Mapping[str, Any], pipe: Connection) -> None:
    """The whole process, which is forked with all modules that it needs."""
    os.environ.update(environ)
    torch.set_num_threads(1)
    try:
        train(plan, pipe)
    finally:
        atexit._run_exitfuncs()  # processes of multiprocessing end without them
