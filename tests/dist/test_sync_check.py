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


def _plant_one_bit() -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...], str]:
    hvd.init()
    model = _model()
    hvd.check_in_sync(model)
    if hvd.rank() == 1:
        # The lowest bit of one element.
        with torch.no_grad():
            model[2].weight.view(torch.int32)[1, 7] ^= 1
    try:
        hvd.check_in_sync(model)
    except hvd.ReplicasDivergedError as error:
        hvd.shutdown()
        return error.tensors, error.ranks, str(error)
    raise AssertionError("the divergence was not found")


def test_one_flipped_bit_is_found_on_all_ranks() -> None:
    results = horovod.run(_plant_one_bit, num_proc=3)
    assert len(set(results)) == 1
    tensors, ranks, message = results[0]
    assert (tensors, ranks) == (("2.weight",), ((1,),))
    assert "'2.weight' on rank 1" in message


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
