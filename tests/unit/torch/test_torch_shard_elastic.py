"""Elastic training with optimizer state in shares; ranks are threads. tests/dist has real kills."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd
from horovod.errors import UsageError
from horovod.testing import run_ranks


def model_of() -> torch.nn.Linear:
    model = torch.nn.Linear(3, 9).double()
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(0.1)
    return model


def optimizer_of(model: torch.nn.Module, shard_state: bool = True) -> Any:
    return hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), 0.1),
        model.named_parameters(),
        shard_state=shard_state,
    )


def take_step(model: torch.nn.Module, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def test_a_loop_with_short_batches_trains_as_without_shares() -> None:
    def train(shard_state: bool) -> list[torch.Tensor]:
        hvd.init()
        model = model_of()
        optimizer = optimizer_of(model, shard_state)
        training = hvd.elastic.Training(model, optimizer, commit_every_s=0.0)
        data = TensorDataset(torch.arange(33.0).reshape(11, 3).double())
        for _ in training.epochs(3):
            for (x,) in training.batches(DataLoader(data, 2, shuffle=True)):
                take_step(model, optimizer, x)
        return [param.detach().clone() for param in model.parameters()]

    wanted = run_ranks(3, train, False)[0]
    for params in run_ranks(3, train, True):
        torch.testing.assert_close(params, wanted, rtol=1e-9, atol=1e-12)


def test_a_commit_keeps_all_shares_and_the_options_of_that_moment() -> None:
    def train() -> None:
        hvd.init()
        model = model_of()
        optimizer = optimizer_of(model)
        state = hvd.elastic.TorchState(model, optimizer)
        state.restore()  # there is nothing to go back to
        x = torch.full((2, 3), 1.0 + hvd.rank(), dtype=torch.float64)
        take_step(model, optimizer, x)
        state.commit()
        optimizer.param_groups[0]["lr"] = 0.5
        state.commit()
        wanted = optimizer.state_dict(), [param.clone() for param in model.parameters()]
        for _ in range(2):
            take_step(model, optimizer, x)
            optimizer.param_groups[0]["lr"] = 7.0
            state.restore()
            found = optimizer.state_dict(), [param.clone() for param in model.parameters()]
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        state.sync()
        torch.testing.assert_close(optimizer.state_dict(), wanted[0], rtol=0, atol=0)
        other_model = model_of()
        other = optimizer_of(other_model)
        take_step(other_model, other, x)
        state.optimizer = other  # is saved, on all ranks
        take_step(other_model, other, x)
        state.restore()
        assert other.state_dict()["state"][0]["step"] == 1

    run_ranks(3, train)


def test_the_first_sync_sends_the_options_of_the_root() -> None:
    def body() -> float:
        hvd.init()
        model = model_of()
        optimizer = optimizer_of(model)
        optimizer.param_groups[0]["lr"] = 0.25 + hvd.rank()
        hvd.elastic.TorchState(model, optimizer).sync()
        return float(optimizer.param_groups[0]["lr"])

    assert run_ranks(2, body) == [0.25, 0.25]


def one_parameter_per_rank() -> list[torch.nn.Parameter]:
    """Make parameters so small that each is on one of two ranks."""
    return [torch.nn.Parameter(torch.ones(10)) for _ in range(2)]


def begin(kind: Any) -> tuple[list[torch.nn.Parameter], Any]:
    hvd.init()
    params = one_parameter_per_rank()
    optimizer = hvd.DistributedOptimizer(kind(params, 0.1), shard_state=True)
    step_all(params, optimizer)
    assert [piece.num_elements for piece in optimizer.shares.pieces] == [10]
    return params, optimizer


def step_all(params: list[torch.nn.Parameter], optimizer: Any) -> None:
    optimizer.zero_grad()
    torch.cat(params).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad])
@pytest.mark.parametrize("call", [step_all, lambda _, optimizer: optimizer.state_dict()])
def test_a_newcomer_in_the_place_of_a_lost_rank_has_no_state(kind: Any, call: Any) -> None:
    trained = run_ranks(2, begin, kind)

    def go_on() -> None:
        hvd.init()
        params, optimizer = trained[hvd.rank()]
        if hvd.rank() == 1:
            params = one_parameter_per_rank()
            optimizer = hvd.DistributedOptimizer(kind(params, 0.1), shard_state=True)
        with pytest.raises(UsageError, match="or that of another step"):
            call(params, optimizer)

    run_ranks(2, go_on)


def test_a_rank_that_is_left_alone_lacks_the_state_of_the_others() -> None:
    trained = run_ranks(2, begin, torch.optim.AdamW)

    def go_on() -> None:
        hvd.init()
        with pytest.raises(UsageError, match="the ranks have changed"):
            step_all(*trained[0])

    run_ranks(1, go_on)


def test_ranks_that_begin_again_as_they_were_keep_their_state() -> None:
    trained = run_ranks(2, begin, torch.optim.AdamW)

    def go_on() -> float:
        hvd.init()
        step_all(*trained[hvd.rank()])
        return float(trained[hvd.rank()][1].state_dict()["state"][0]["step"])

    assert run_ranks(2, go_on) == [2.0, 2.0]
