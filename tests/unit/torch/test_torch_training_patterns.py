"""Patterns of training scripts that DistributedOptimizer must serve, with ranks as threads."""

from __future__ import annotations

import itertools

import pytest
import torch
from thread_ranks import run_ranks
from torch_training import (
    F64,
    assert_close,
    assert_ranks_agree,
    backward,
    batch,
    gradients,
    local_gradients,
    loss_of,
    make_model,
    sgd,
    wrap,
)

import horovod.torch as hvd
from horovod.torch.optimizer import ReducingOptimizer


def test_parameters_frozen_after_wrapping_stay_as_they_are() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        plain = sgd(model, momentum=0.9, weight_decay=0.1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        for step in range(4):
            optimizer.zero_grad()
            model[0].requires_grad_(step < 2)
            if step == 2:
                frozen = [param.clone() for param in model[0].parameters()]
            backward(model, rank, step)
            optimizer.step()
        assert_close([param.detach() for param in model[0].parameters()], frozen)
        assert_ranks_agree(model)

    run_ranks(2, body)


def test_parameters_unfrozen_after_wrapping_are_reduced() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        model[0].requires_grad_(False)
        optimizer = wrap(model)
        backward(model, rank)
        optimizer.step()
        model[0].requires_grad_(True)
        for step in range(3):
            optimizer.zero_grad()
            backward(model, rank, step)
            optimizer.step()
        assert_ranks_agree(model)

    run_ranks(2, body)


@pytest.mark.parametrize("changes_weight", [True, False])
def test_passes_of_unfrozen_parameters_have_their_weights(changes_weight: bool) -> None:
    def body(rank: int) -> None:
        weights = itertools.cycle([1.0, 3.0])
        params = {"p": torch.nn.Parameter(torch.ones(2)), "q": torch.nn.Parameter(torch.ones(2))}
        params["q"].requires_grad_(changes_weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params.values(), lr=0.1),
            params.items(),
            backward_passes_per_step=2,
            weight=None if changes_weight else lambda: next(weights),
        )
        assert isinstance(optimizer, ReducingOptimizer)
        params["q"].requires_grad_(False)
        if changes_weight:
            optimizer.set_weight(lambda: next(weights))
        for step in range(4):
            params["q"].requires_grad_(step > 1)
            optimizer.zero_grad()
            for factor in (1.0, 2.0):
                sum((param * factor).sum() for param in params.values()).backward()
            optimizer.step()
            for param in params.values() if step > 1 else [params["p"]]:
                assert param.grad is not None
                # Twice the mean of 1 and 2 that weighs them by 1 and 3.
                assert_close([param.grad], [torch.full((2,), 3.5)])

    run_ranks(2, body)


def test_parameters_added_after_wrapping_are_reduced() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        plain = torch.optim.SGD(model[0].parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        more = torch.nn.Linear(5, 2, dtype=F64)
        hvd.broadcast_parameters(more.state_dict(), 0)
        optimizer.add_param_group({"params": [*model[3].parameters(), *more.parameters()]})
        for step in range(3):
            optimizer.zero_grad()
            backward(model, rank, step)
            loss_of(more, *batch(rank, step, F64)).backward()
            optimizer.step()
        assert_ranks_agree(more)

    run_ranks(2, body)


@pytest.mark.parametrize("before", [True, False])
def test_learning_rate_schedulers(before: bool) -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        plain = sgd(model)
        if before:
            scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
            optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        else:
            optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for step in range(2):
            optimizer.zero_grad()
            backward(model, rank, step)
            optimizer.step()
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
        assert_ranks_agree(model)

    run_ranks(2, body)


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")
def test_a_cyclic_schedule_reads_options_at_any_time() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model)
        backward(model, rank)
        assert optimizer.param_groups[0]["lr"] == 0.1
        optimizer.step()
        assert_ranks_agree(model)

    run_ranks(2, body)


def test_compressed_and_strided_gradients_keep_dtype_and_layout() -> None:
    def body(rank: int) -> None:
        conv = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        hvd.broadcast_parameters(conv.state_dict(), 0)
        for compression in (hvd.Compression.none, hvd.Compression.fp16):
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(conv.parameters(), lr=0.1), compression=compression
            )
            optimizer.zero_grad()
            image = torch.full((1, 2, 5, 5), float(rank))
            conv(image.contiguous(memory_format=torch.channels_last)).sum().backward()
            optimizer.step()
            gradient = conv.weight.grad
            assert gradient is not None
            assert gradient.dtype is torch.float32
            assert gradient.is_contiguous(memory_format=torch.channels_last)
            assert (gradient == 4.5).all()

    run_ranks(2, body)


@pytest.mark.parametrize("groups", [None, 2])
def test_ranks_outside_of_the_process_set_train_alone(groups: int | None) -> None:
    def body(rank: int) -> None:
        pair = hvd.add_process_set([0, 2])
        model = make_model(0, F64)
        optimizer = wrap(model, process_set=pair, groups=groups)
        backward(model, rank)
        optimizer.step()
        mean = zip(local_gradients(0), local_gradients(2), strict=True)
        expected = local_gradients(1) if rank == 1 else [(a + b) / 2 for a, b in mean]
        assert_close(gradients(model), expected)

    run_ranks(3, body)


def test_ranks_with_fewer_batches_join() -> None:
    def body(rank: int) -> None:
        model = torch.nn.Sequential(make_model(0, F64), torch.nn.Linear(2, 2, dtype=F64))
        model.append(torch.nn.Embedding(50, 2, sparse=True, dtype=F64))
        table = model[2]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
        )
        # The second layer is never used, and the table only while rank 1 has joined.
        for epoch in range(2):
            for step in range(3 if rank == 0 else 1):
                optimizer.zero_grad()
                loss = loss_of(model[0], *batch(rank, step, F64))
                if step or epoch:
                    loss = loss + table(torch.tensor([step])).sum()
                loss.backward()
                optimizer.step()
            hvd.join()
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        assert_ranks_agree(model)

    run_ranks(2, body)
