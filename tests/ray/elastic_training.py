"""What the workers of test_ray_elastic.py do: they count how often each sample was trained."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import ray.util

from horovod._rank import context
from horovod._train import objects
from horovod._train.elastic.run import run
from horovod._train.elastic.state import ObjectState
from horovod.ray import ray_logger

LENGTH, BATCH_SIZE, EPOCHS = 48, 4, 4
# On a busy machine, a node, an actor and PyTorch take a minute to start.
PATIENCE_S = 240.0


def tell(what: str, **more: Any) -> None:
    """Tells the test where this rank is."""
    where = {
        "rank": context.rank(),
        "size": context.size(),
        "generation": context.generation(),
        "pid": os.getpid(),
        "address": ray.util.get_node_ip_address(),
    }
    ray_logger.log({"what": what, **where, **more})


def await_change() -> None:
    """Waits until the job has another generation."""
    worker = context.elastic_worker()
    assert worker is not None
    generation, deadline = context.generation(), time.monotonic() + PATIENCE_S
    while worker.newest == generation:
        assert time.monotonic() < deadline, "there was no next generation"
        time.sleep(0.01)


class Script:
    """What happens while the job trains; the test leaves a file when it has done its part.

    Args:
        folder: of these files.
        sizes: by epoch, what it takes to go on; fewer ranks wait for more.
        victims: by epoch, which rank waits for its death, or the one of which address.
    """

    def __init__(self, folder: str, sizes: dict[int, int], victims: dict[int, int | str]) -> None:
        self._folder = Path(folder)
        self._sizes = sizes
        self._victims = victims

    def happens(self, epoch: int) -> None:
        """Called before each step."""
        is_over = (self._folder / str(epoch)).exists()
        if context.size() < self._sizes.get(epoch, 0) and not is_over:
            tell("waits", epoch=epoch)
            await_change()
        elif epoch in self._victims and not is_over:
            tell("expects a loss", epoch=epoch)
            if self._victims[epoch] in (context.rank(), ray.util.get_node_ip_address()):
                time.sleep(PATIENCE_S)


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    """Without a framework, which takes long to load."""
    return objects.broadcast_object(context.global_group(), obj, root_rank)


def steps(*sizes: int) -> tuple[int, int, int]:
    """Takes steps until the job had these sizes one after the other; returns rank, size, process.

    There is a commit after each step.
    """
    deadline = time.monotonic() + PATIENCE_S
    context.init()
    tell("started")

    @run
    def train(state: ObjectState) -> None:
        while state.after < 3:
            assert time.monotonic() < deadline, f"the job had the sizes {state.sizes}"
            tell("steps", step=state.step)
            time.sleep(0.1)
            state.step += 1
            if state.sizes[-1:] != [context.size()]:
                state.sizes = [*state.sizes, context.size()]
            state.after += tuple(state.sizes[-len(sizes) :]) == sizes
            state.commit()

    train(ObjectState(broadcast_object, context.rank, step=0, sizes=[], after=0))
    tell("finished")
    return context.rank(), context.size(), os.getpid()


def with_torch(script: Script) -> dict[str, Any]:
    """Trains with PyTorch: the gradient of each sample is -1."""
    import torch
    from torch.utils.data import DataLoader

    import horovod.torch as hvd

    torch.set_num_threads(1)

    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.times = torch.nn.Parameter(torch.zeros(LENGTH))

    hvd.init()
    model = Counts()
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=hvd.Sum)
    training = hvd.elastic.Training(model=model, optimizer=optimizer, commit_every_s=0.02)
    loader = DataLoader(torch.arange(LENGTH), BATCH_SIZE, shuffle=True)
    for epoch in training.epochs(EPOCHS):
        for step, indices in enumerate(training.batches(loader)):
            if step == 2:
                script.happens(epoch)
            optimizer.zero_grad()
            model.times[indices].sum().neg().backward()
            optimizer.step()
    return {"times": model.times.tolist(), "pid": os.getpid(), "rank": hvd.rank()}


class Counter:
    """Lives in a worker as long as the worker does."""

    def __init__(self, first: int, *, by: int) -> None:
        self.value = first * by


def look(counter: Counter) -> tuple[int, str]:
    context.init()
    return counter.value, os.environ["SOME_NUMBER"]


def fail(number: int) -> None:
    context.init()
    if context.rank() == 1:
        raise KeyError(f"number {number}")
    context.global_group().barrier().wait()


class Unloadable:
    """Cannot be made again in a worker."""

    def __reduce__(self) -> Any:
        return exec, ("raise ModuleNotFoundError('of this worker')",)
