"""A worker of an elastic job: trains a small network until the file of its argument is there."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(8, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    """Train until all ranks have seen the file."""
    while True:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(0.05)
        done = hvd.allreduce(torch.tensor(float(Path(sys.argv[1]).exists())), op=hvd.Sum, name="d")
        if done.item():
            return
        state.commit()


train(hvd.elastic.TorchState(model=model, optimizer=optimizer))
