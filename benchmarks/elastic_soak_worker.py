"""A worker of benchmarks/elastic_soak.py: trains a small network for a number of steps.

Its arguments: the number of steps, and a folder. Rank 0 keeps the file ``step`` there up to date,
and leaves ``result.json`` at the end.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

import horovod.torch as hvd

FEATURES, HIDDEN, CLASSES, BATCH_SIZE = 16, 32, 4, 8
STEPS_PER_COMMIT = 20
STEPS_PER_LOG = 100

Data = tuple[torch.Tensor, torch.Tensor]


def batches(rank: int) -> list[Data]:
    """A few batches of a rank, over and over, so that a step is short."""
    generator = torch.Generator().manual_seed(rank)
    inputs = [torch.randn(BATCH_SIZE, FEATURES, generator=generator) for _ in range(16)]
    return [(each, each[:, :CLASSES].argmax(1)) for each in inputs]


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, steps: int, folder: Path) -> None:
    """Trains up to a number of steps."""
    place = f"rank {hvd.rank()} of {hvd.size()} in generation {hvd.elastic.generation()}"
    print(f"{place} is {os.getpid()} at step {state.step}", flush=True)
    data = batches(hvd.rank())
    file = os.open(folder / "step", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    try:
        while state.step < steps:
            loss = one_step(state, data[state.step % len(data)])
            state.step += 1
            if state.step % STEPS_PER_LOG == 0:
                hvd.log(loss=loss.item())
            if hvd.rank() == 0:
                os.pwrite(file, b"%20d" % state.step, 0)
            if state.step % STEPS_PER_COMMIT == 0:
                state.commit()
    finally:
        os.close(file)


def one_step(state: hvd.elastic.TorchState, batch: Data) -> torch.Tensor:
    """Takes one step; the loss."""
    inputs, targets = batch
    state.optimizer.zero_grad()
    loss = nn.functional.cross_entropy(state.model(inputs), targets)
    loss.backward()
    state.optimizer.step()
    return loss


def main() -> None:
    """What a script does."""
    steps, folder = int(sys.argv[1]), Path(sys.argv[2])
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    train(state, steps, folder)
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])
    everyones = hvd.allgather(weights[None], name="weights")
    result = {
        "steps": state.step,
        "ranks": hvd.size(),
        "generation": hvd.elastic.generation(),
        "equal": bool((everyones == everyones[0]).all()),
        "finite": bool(weights.isfinite().all()),
    }
    if hvd.rank() == 0:
        (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
