"""A worker that counts in its weights how often each sample of a stream was trained.

Its plan: "dies": the generation in which it kills itself, after some steps; None for never.
"""

from __future__ import annotations

import atexit
import os
import signal
from typing import TYPE_CHECKING, Any

import datasets
import torch

import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from multiprocessing.connection import Connection

LENGTH, BATCH_SIZE, EPOCHS, COMMIT_EVERY = 180, 2, 2, 3
# So many steps after its beginning a generation loses a rank: one or two more than committed.
DIES_AFTER = {0: 4, 1: 5}


def examples(files: list[range]) -> Iterator[dict[str, int]]:
    for file in files:
        for each in file:
            yield {"id": each}


def stream() -> datasets.IterableDataset:
    """Return a stream of 3 shards, a third of which a filter leaves out."""
    files = [range(40), range(40, 110), range(110, LENGTH)]
    whole = datasets.IterableDataset.from_generator(examples, gen_kwargs={"files": files})
    return whole.filter(lambda example: example["id"] % 3 != 0).with_format("torch")


class Counts(torch.nn.Module):
    """One parameter for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.times = torch.nn.Parameter(torch.zeros(LENGTH))


def work(plan: Mapping[str, Any], pipe: Connection) -> None:
    """What a script does."""
    hvd.init()
    model = Counts()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=hvd.Sum
    )
    shard = hvd.shard(stream(), batch_size=BATCH_SIZE, shuffle=True, seed=5, buffer=8)

    @hvd.elastic.run
    def train(state: Any) -> None:
        steps = 0
        for _ in shard.epochs(EPOCHS):
            for batch in shard:
                if steps == DIES_AFTER.get(hvd.elastic.generation()) == plan_steps(plan):
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                # The gradient of each sample that counts on this rank is -1.
                loss = model.times[batch["id"]].sum().neg()
                (loss * (shard.samples > 0)).backward()
                optimizer.step()
                state.sizes.append(hvd.size())
                steps += 1
                if steps % COMMIT_EVERY == 0:
                    state.commit()
        pipe.send({"times": model.times.tolist(), "sizes": state.sizes})

    train(hvd.elastic.TorchState(model, optimizer, shard=shard, sizes=[]))


def plan_steps(plan: Mapping[str, Any]) -> int | None:
    """Return after how many steps of the present generation this worker dies."""
    dies = plan["dies"] == hvd.elastic.generation()
    return DIES_AFTER[plan["dies"]] if dies else None


def main(environ: Mapping[str, str], plan: Mapping[str, Any], pipe: Connection) -> None:
    """The whole process, which is forked with all modules that it needs."""
    os.environ.update(environ)
    torch.set_num_threads(1)
    try:
        work(plan, pipe)
    finally:
        atexit._run_exitfuncs()  # processes of multiprocessing end without them
