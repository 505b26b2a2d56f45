"""A worker that counts in its weights how often each sample was trained; test_elastic_samples.py.

Its plan: "style": "simple" or "old"; "dies": whether it kills itself in the first generation.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

import horovod.torch as hvd
from horovod._rank import context

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

LENGTH, BATCH_SIZE, EPOCHS = 96, 4, 4
PATIENCE_S = 240.0

PLAN: dict[str, Any] = {}
PIPE: list[Connection] = []


class Counts(torch.nn.Module):
    """One parameter for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.times = torch.nn.Parameter(torch.zeros(LENGTH))


def happens(epoch: int, step: int) -> None:
    """A loss in the first generation, a newcomer in the second one, a removal in the third."""
    generation = hvd.elastic.generation()
    if generation == 0 and (epoch, step) == (0, 4) and PLAN.get("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    if (generation, epoch, step) in {(1, 1, 2), (2, 2, 2)}:
        PIPE[0].send({"waits": generation})
        worker = context.elastic_worker()
        assert worker is not None
        deadline = time.monotonic() + PATIENCE_S
        while worker.newest == generation:
            assert time.monotonic() < deadline, "there was no next generation"
            time.sleep(0.002)


def take_step(model: Counts, optimizer: torch.optim.Optimizer, indices: torch.Tensor) -> None:
    """The gradient of each sample in the batch is -1."""
    optimizer.zero_grad()
    model.times[indices].sum().neg().backward()
    optimizer.step()


def simple(model: Counts, optimizer: torch.optim.Optimizer) -> list[int]:
    """Returns the sizes of all steps that count."""
    training = hvd.elastic.Training(model=model, optimizer=optimizer, commit_every_s=0.02)
    loader = DataLoader(torch.arange(LENGTH), BATCH_SIZE, shuffle=True)
    values = training.track(sizes=[])
    for epoch in training.epochs(EPOCHS):
        for step, indices in enumerate(training.batches(loader)):
            happens(epoch, step)
            take_step(model, optimizer, indices)
            values.sizes.append(hvd.size())
    return values.sizes


def old(model: Counts, optimizer: torch.optim.Optimizer) -> list[int]:
    """The same with a state, a sampler and a function."""
    data = torch.arange(LENGTH)
    sampler = hvd.elastic.ElasticSampler(data)
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler)

    @hvd.elastic.run
    def train(state: Any) -> list[int]:
        while state.epoch < EPOCHS:
            for step, indices in enumerate(loader):
                happens(state.epoch, step)
                take_step(state.model, state.optimizer, indices)
                state.sampler.record_batch(step, BATCH_SIZE)
                state.sizes.append(hvd.size())
                if step % 3 == 2:
                    state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()
        return state.sizes

    return train(hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, sizes=[]))


def work() -> None:
    """What a script does."""
    hvd.init()
    model = Counts()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
    sizes = (simple if PLAN["style"] == "simple" else old)(model, optimizer)
    PIPE[0].send({"times": model.times.tolist(), "sizes": sizes, "rank": hvd.rank()})


def main(environ: Mapping[str, str], plan: Mapping[str, Any], pipe: Connection) -> None:
    """The whole process, which is forked with all modules that it needs."""
    os.environ.update(environ)
    PLAN.update(plan)
    PIPE.append(pipe)
    torch.set_num_threads(1)
    try:
        work()
    finally:
        atexit._run_exitfuncs()  # processes of multiprocessing end without them
