"""Training code on several ranks, as threads and as processes."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd
from horovod.testing import run_ranks


def train(steps: int) -> tuple[list[float], float]:
    """Training code that knows nothing of how it is run."""
    hvd.init()
    generator = torch.Generator().manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0 + hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
    total = hvd.allreduce(torch.tensor([1.0]), op=hvd.Sum, name="total").item()
    hvd.shutdown()
    return [p.flatten().tolist()[0] for p in model.parameters()], total


@pytest.mark.parametrize("size", [1, 4])
def test_training_code_runs_as_it_is(size: int) -> None:
    results = run_ranks(size, train, 3)
    assert results == [results[0]] * size
    assert results[0][1] == size
    assert all(value < 1.0 for value in results[0][0])
    assert not hvd.is_initialized()


def test_threads_and_processes_compute_the_same() -> None:
    assert run_ranks(2, train, 2) == run_ranks(2, train, 2, processes=True)
