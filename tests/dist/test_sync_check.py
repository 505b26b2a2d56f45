"""A planted divergence is found between real processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import horovod
import horovod.torch as hvd

if TYPE_CHECKING:
    import pytest


def _model() -> torch.nn.Sequential:
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 2))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model


def _train_until_it_is_found() -> tuple[int, str]:
    hvd.init()
    model = _model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )
    for step in range(100):
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        if step == 10 and hvd.rank() == 0:
            with torch.no_grad():
                model[0].bias[3] += 1
        try:
            optimizer.step()
        except hvd.ReplicasDivergedError as error:
            hvd.shutdown()
            return step, error.tensors[0]
    raise AssertionError("the divergence was not found")


def test_training_finds_it_by_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CHECK_IN_SYNC_STEPS", "5")
    results = horovod.run(_train_until_it_is_found, num_proc=2)
    # Steps 0 to 4 are the first five; what steps 10 to 14 sent is judged after five more.
    assert results == [(19, "0.bias")] * 2
