"""The optimizer for Adasum, which reduces steps instead of gradients; ranks are threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thread_ranks import run_ranks
from torch_scenarios import Job, learnt
from torch_training import (
    F64,
    assert_close,
    assert_ranks_agree,
    backward,
    batch,
    check_equal,
    local_gradients,
    loss_of,
    make_model,
    sgd,
)

import horovod.torch as hvd
from horovod._train.gradient_reducer import ReducerSettings
from horovod.errors import UsageError
from horovod.torch.delta_reducer import DeltaReducer
from horovod.torch.optimizer import DeltaOptimizer, _wrap


def wrap_deltas(
    plain: torch.optim.Optimizer, model: torch.nn.Module, compression: Any = hvd.Compression.none
) -> Any:
    """The optimizer for Adasum with an average in its place, whose results are easy to tell."""
    settings = ReducerSettings(hvd.Average, 1.0, compression, False, hvd.global_process_set, "here")
    names = {param: name for name, param in model.named_parameters()}
    return _wrap(plain, DeltaOptimizer, DeltaReducer(settings, names, 1), settings)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_mean_of_the_steps_of_sgd_is_the_step_by_the_mean(size: int) -> None:
    def train(job: Job) -> list[torch.Tensor]:
        model = make_model(0, F64)
        plain = sgd(model, momentum=0.9)
        optimizer = wrap_deltas(plain, model) if job.distributed else plain
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, *job.batch(step)).backward()
            optimizer.step()
        return learnt(model)

    everyones = run_ranks(size, lambda rank: train(Job([rank], distributed=True)))
    check_equal(everyones, train(Job(range(size))), 1e-9)


def test_gradients_stay_those_of_the_rank() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap_deltas(sgd(model), model)
        backward(model, rank)
        optimizer.synchronize()
        assert_close([param.grad for param in model.parameters()], local_gradients(rank))
        with pytest.raises(AssertionError, match="Adasum"), optimizer.skip_synchronize():
            pass
        with pytest.raises(UsageError, match="weight"):
            optimizer.set_weight(2.0)
        optimizer.step()
        assert_ranks_agree(model)

    run_ranks(2, body)


def test_closures_accumulation_and_frozen_parameters() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap_deltas(sgd(model), model)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, *batch(rank, 0, F64))
            loss.backward()
            return loss

        assert isinstance(optimizer.step(closure), torch.Tensor)
        assert_ranks_agree(model)
        optimizer.zero_grad(set_to_none=False)
        # One rank freezes a layer, another has no gradient for it anyway.
        model[0].requires_grad_(rank != 0)
        for step in range(2):
            backward(model, rank, step)
        optimizer.step()
        assert_ranks_agree(model)

    run_ranks(2, body)


def test_an_overflow_on_one_rank_makes_all_skip() -> None:
    def body(rank: int) -> None:
        model = make_model(0, torch.float32)
        optimizer = wrap_deltas(sgd(model), model, hvd.Compression.bf16)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, *batch(rank, step, torch.float32))
            scaler.scale(loss * float("inf") if rank == 1 and step == 1 else loss).backward()
            before = learnt(model)[0].clone()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(before, learnt(model)[0]) == (step == 1)
        assert scaler.get_scale() == 2.0**7
        assert_ranks_agree(model)

    run_ranks(2, body)


def adasum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What two ranks' vectors become: the sum of orthogonal ones, the mean of equal ones."""
    dot = float((a * b).sum())
    of_a, of_b = float(a.square().sum()), float(b.square().sum())
    share_a = 1.0 - dot / (2.0 * of_a) if of_a else 1.0
    share_b = 1.0 - dot / (2.0 * of_b) if of_b else 1.0
    return share_a * a + share_b * b


def test_adasum_combines_the_steps_of_two_ranks() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        start = [param.detach().clone() for param in model.parameters()]
        optimizer = hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), op=hvd.Adasum, backward_passes_per_step=2
        )
        assert isinstance(optimizer, torch.optim.SGD)
        assert optimizer.backward_passes_per_step == 2
        for _ in range(2):
            backward(model, rank)
        optimizer.step()
        pairs = zip(local_gradients(0), local_gradients(1), strict=True)
        expected = [
            param + adasum(-0.2 * a, -0.2 * b) for param, (a, b) in zip(start, pairs, strict=True)
        ]
        for got, want in zip(learnt(model), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)
        assert_ranks_agree(model)

    run_ranks(2, body)
