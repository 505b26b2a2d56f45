"""Patterns of training scripts that DistributedOptimizer must serve, with ranks as threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thread_ranks import run_ranks
from torch_training import (
    F64,
    assert_close,
    assert_ranks_agree,
    backward,
    batch,
    check_equal,
    loss_of,
    make_model,
    sgd,
    wrap,
)

import horovod.torch as hvd
from horovod.errors import UsageError


def test_generator_and_discriminator_with_toggled_gradients() -> None:
    def train(rank: int, sizes: range, wrapped: bool) -> list[torch.Tensor]:
        generator = torch.nn.Linear(3, 5, dtype=F64)
        discriminator = torch.nn.Linear(5, 1, dtype=F64)
        networks = (generator, discriminator)
        for network in networks:
            for index, param in enumerate(network.parameters()):
                torch.nn.init.constant_(param, 0.1 * (index + 1))
        optimizers: list[Any] = [torch.optim.Adam(network.parameters()) for network in networks]
        if wrapped:
            optimizers = [
                hvd.DistributedOptimizer(optimizer, network.named_parameters())
                for optimizer, network in zip(optimizers, networks, strict=True)
            ]
        for step in range(4):
            data = torch.cat([batch(r, step, F64)[0] for r in sizes])
            discriminator.requires_grad_(True)
            optimizers[1].zero_grad()
            fake = generator(data[:, :3])
            (discriminator(data).mean() - discriminator(fake.detach()).mean()).backward()
            optimizers[1].step()
            # With and without the toggle: without it, gradients of the discriminator are in
            # flight when its next zero_grad() drops them.
            discriminator.requires_grad_(step % 2 == 0)
            optimizers[0].zero_grad()
            discriminator(generator(data[:, :3])).pow(2).mean().backward()
            optimizers[0].step()
        return [param.detach() for network in networks for param in network.parameters()]

    everyones = run_ranks(2, lambda rank: train(rank, range(rank, rank + 1), wrapped=True))
    check_equal(everyones, train(0, range(2), wrapped=False), 1e-9)


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


def scaled_training(rank: int, size: int, style: str, optimizer_of: Any) -> list[torch.Tensor]:
    model = make_model(0, torch.float32)
    optimizer = optimizer_of(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(6):
        optimizer.zero_grad()
        data = [batch(r, step, torch.float32) for r in ([rank] if rank >= 0 else range(size))]
        x, y = (torch.cat(part) for part in zip(*data, strict=True))
        loss = loss_of(model, x, y)
        if step == 3 and rank in (-1, 1):
            # One rank overflows: all must skip the step.
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if style == "documented":
            optimizer.synchronize()
        if style != "plain":
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if style == "documented":
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
    return [param.detach() for param in model.parameters()]


@pytest.mark.parametrize("style", ["plain", "clipped", "documented"])
def test_gradient_scaling(style: str) -> None:
    everyones = run_ranks(2, lambda rank: scaled_training(rank, 2, style, wrap))
    alone = scaled_training(-1, 2, "plain" if style == "plain" else "clipped", sgd)
    check_equal(everyones, alone, 1e-4)


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


def test_sparse_gradients() -> None:
    def body(rank: int) -> None:
        table = torch.nn.Embedding(4, 2, sparse=True)
        torch.nn.init.ones_(table.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SparseAdam(table.parameters()), sparse_as_dense=True
        )
        table(torch.tensor([0, 1 + rank])).sum().backward()
        optimizer.synchronize()
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse
        assert table.weight.grad.to_dense()[:, 0].tolist() == [1.0, 0.5, 0.5, 0.0]
        with optimizer.skip_synchronize():
            optimizer.step()
        refused = hvd.DistributedOptimizer(torch.optim.SparseAdam(table.parameters()))
        del optimizer
        with pytest.raises(UsageError, match="sparse_as_dense=True"):
            table(torch.tensor([0])).sum().backward()
        del refused

    run_ranks(2, body)
