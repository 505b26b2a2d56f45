"""Gradients in shared memory, with ranks as threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from thread_ranks import ThreadRanks
from torch_training import F64, assert_close, assert_ranks_agree, batch, loss_of, make_model, sgd

import horovod.torch as hvd
from horovod._native import private_array
from horovod.errors import ShutDownError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.torch.optimizer import ReducingOptimizer

STEPS = 6


def wrapped(model: torch.nn.Module, **options: Any) -> ReducingOptimizer:
    return hvd.DistributedOptimizer(sgd(model), model.named_parameters(), **options)


def train(
    rank: int, buckets: bool, before: Callable[[torch.nn.Module, int], None] | None, **options: Any
) -> list[torch.Tensor]:
    model = make_model(0, F64)
    optimizer = wrapped(model, gradient_buckets=buckets, **options)
    passes = options.get("backward_passes_per_step", 1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for index in range(passes):
            loss_of(model, *batch(rank, step * passes + index, F64)).backward()
        if before is not None:
            before(model, step)
        optimizer.step()
    return [param.detach() for param in model.parameters()]


def drop_a_gradient(model: torch.nn.Module, step: int) -> None:
    model[0].bias.grad = None


def replace_a_gradient(model: torch.nn.Module, step: int) -> None:
    model[2].weight.grad = torch.full_like(model[2].weight, float(step))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("options", "before"),
    [
        ({}, None),
        ({"backward_passes_per_step": 3}, None),
        ({"backward_passes_per_step": 3}, replace_a_gradient),
        ({"gradient_predivide_factor": 2.0}, None),
        ({"op": hvd.Sum}, None),
        ({"groups": 2}, None),
        ({"weight": 2.0}, None),
        ({}, drop_a_gradient),
    ],
)
def test_results_are_those_without_buckets(
    size: int,
    options: dict[str, Any],
    before: Callable[[torch.nn.Module, int], None] | None,
) -> None:
    with ThreadRanks(size) as ranks:
        in_buckets = ranks.run(train_rank, True, before, options)
        direct = [engine.statistics()["direct_batches"] for engine in ranks.engines]
        private = ranks.run(train_rank, False, before, options)
    assert all(num > 0 for num in direct) or "weight" in options
    for mine, other in zip(in_buckets, private, strict=True):
        assert_close(mine, other)


def train_rank(
    rank: int,
    buckets: bool,
    before: Callable[[torch.nn.Module, int], None] | None,
    options: dict[str, Any],
) -> list[torch.Tensor]:
    return train(rank, buckets, before, **options)


def test_gradients_live_in_one_bucket_from_the_third_step_on() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            model = make_model(0, F64)
            optimizer = wrapped(model)
            for step in range(STEPS):
                model.zero_grad(set_to_none=step % 2 == 0)
                loss_of(model, *batch(rank, step, F64)).backward()
                before = ranks.engines[rank].statistics()["direct_batches"]
                optimizer.step()
                after = ranks.engines[rank].statistics()["direct_batches"]
                if step >= 2:
                    assert after <= before + 1
            params = list(model.parameters())
            places = sorted(param.grad.data_ptr() for param in params if param.grad is not None)
            assert places[-1] - places[0] < 64 * 1024
            assert ranks.engines[rank].statistics()["direct_batches"] == STEPS - 2
            assert_ranks_agree(model)

        ranks.run(body)


def test_whoever_keeps_a_gradient_finds_its_values_in_it() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            model = make_model(0, F64)
            optimizer = wrapped(model)
            kept: list[tuple[torch.Tensor, torch.Tensor]] = []
            for step in range(STEPS):
                optimizer.zero_grad()
                loss_of(model, *batch(rank, step, F64)).backward()
                optimizer.step()
                gradient = model[0].weight.grad
                assert gradient is not None
                kept.append((gradient, gradient.clone()))
                del gradient
            for gradient, then in kept:
                assert torch.equal(gradient, then)

        ranks.run(body)


def test_a_rank_that_joins_early_comes_back() -> None:
    with ThreadRanks(3) as ranks:

        def body(rank: int) -> int:
            model = make_model(0, F64)
            optimizer = wrapped(model)
            for epoch in range(4):
                # Rank 0 has no data at first, rank 1 one batch, rank 2 more.
                for step in range((rank, rank, 3, 2)[epoch]):
                    optimizer.zero_grad()
                    loss_of(model, *batch(rank, step, F64)).backward()
                    optimizer.step()
                hvd.join()
                hvd.broadcast_parameters(model.state_dict(), root_rank=2)
            assert_ranks_agree(model)
            return ranks.engines[rank].statistics()["direct_batches"]

        assert all(num > 0 for num in ranks.run(body))


def test_a_parameter_that_is_frozen_or_has_no_gradient_on_one_rank() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            model = make_model(0, F64)
            unused = torch.nn.Parameter(torch.ones(3, dtype=F64))
            params = [*model.named_parameters(), ("unused", unused)]
            plain = torch.optim.SGD([param for _, param in params], lr=0.1)
            optimizer = hvd.DistributedOptimizer(plain, params)
            for step in range(STEPS):
                optimizer.zero_grad()
                loss = loss_of(model, *batch(rank, step, F64))
                if rank == 0 or step == 0:
                    loss = loss + (unused * (rank + 1.0)).sum()
                loss.backward()
                optimizer.synchronize()
                assert unused.grad is not None
                expected = 1.5 if step == 0 else 0.5
                assert torch.equal(unused.grad, torch.full((3,), expected, dtype=F64))
                with optimizer.skip_synchronize():
                    optimizer.step()
                if step == 2:
                    model[0].weight.requires_grad_(rank == 0)
                    model[0].weight.grad = None
                if step > 2:
                    assert (model[0].weight.grad is None) == (rank == 1)

        ranks.run(body)


def test_other_process_sets_and_compressions_have_no_buckets() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            train(rank, True, None, compression=hvd.Compression.fp16)
            assert ranks.engines[rank].statistics()["direct_batches"] == 0

        ranks.run(body)


def test_an_error_of_a_bucket_tells_its_parameters() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            model = make_model(0, F64)
            optimizer = wrapped(model)
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, *batch(rank, step, F64)).backward()
                optimizer.step()
            if rank == 1:
                ranks.engines[rank].close("it has had enough")
                return
            loss_of(model, *batch(rank, 3, F64)).backward()
            names = "3.bias, 3.weight, 2.bias, 2.weight and 2 more failed: rank 1"
            with pytest.raises(ShutDownError, match=names):
                optimizer.step()

        ranks.run(body)


def test_parts_of_an_array_lie_within_it() -> None:
    array = private_array(64)
    part = array.part(16, "float64", (2, 3))
    assert part.address == array.address + 16
    assert part.shape == (2, 3)
    for offset, shape in ((16, (7,)), (65, (0,)), (4, (1,)), (0, (-1,))):
        with pytest.raises(UsageError, match="has no part of float64"):
            array.part(offset, "float64", shape)
