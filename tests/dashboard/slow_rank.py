"""A rank of tests of the page: trains a small network; one rank is slow in one phase.

Arguments: the phase, "backward" or "input" or "none"; the rank; seconds; a file that ends it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Iterator

phase, slow_rank, delay_s, stop = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
hvd.init()
torch.manual_seed(0)
if folder := os.environ.get("PIDS"):
    Path(folder, str(hvd.rank())).write_text(str(os.getpid()))
is_slow = hvd.rank() == slow_rank


class Rows(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Rows without end."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            if is_slow and phase == "input":
                time.sleep(delay_s)
            yield torch.randn(64)


def dawdle(gradient: torch.Tensor) -> None:
    """Take time in the backward pass."""
    if is_slow and phase == "backward":
        time.sleep(delay_s)


model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
loader = torch.utils.data.DataLoader(Rows(), batch_size=None)
for step, row in enumerate(loader):
    optimizer.zero_grad()
    hidden = model(row.repeat(16, 1))
    hidden.register_hook(dawdle)
    loss = hidden.square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
        done = hvd.allreduce(torch.tensor(float(Path(stop).exists())), op=hvd.Sum, name="stop")
        if done.item():
            break
print("stopped", flush=True)
