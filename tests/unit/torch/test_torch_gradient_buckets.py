"""Gradients in shared memory, with ranks as threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from thread_ranks import ThreadRanks, run_ranks
from torch_training import (
    F64,
    assert_close,
    assert_ranks_agree,
    batch,
    gradients,
    loss_of,
    make_model,
    mean_gradients,
    sgd,
)

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


def test_a_flat_array_of_all_gradients_holds_the_reduced_ones() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            model = make_model(0, F64)
            params = list(model.parameters())
            flat = torch.zeros(sum(param.numel() for param in params), dtype=F64)
            views = flat.split([param.numel() for param in params])
            for param, view in zip(params, views, strict=True):
                param.grad = view.view_as(param)
            optimizer = wrapped(model)
            for step in range(STEPS):
                flat.zero_()
                loss_of(model, *batch(rank, step, F64)).backward()
                optimizer.synchronize()
                expected = mean_gradients(2, step)
                assert_close(list(views), [gradient.reshape(-1) for gradient in expected])
                assert_close(gradients(model), expected)
            assert ranks.engines[rank].statistics()["direct_batches"] == STEPS - 2

        ranks.run(body)


def test_whoever_keeps_the_first_gradient_sees_all_later_ones_in_it() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            model = make_model(0, F64)
            optimizer = wrapped(model)
            kept: list[torch.Tensor] = []
            for step in range(STEPS):
                optimizer.zero_grad(set_to_none=False)
                loss_of(model, *batch(rank, step, F64)).backward()
                optimizer.synchronize()
                if step == 1:
                    kept = [gradients(model)[0], gradients(model)[1].view(-1)]
                if step:
                    first, second, *_ = mean_gradients(2, step)
                    assert_close(kept, [first, second.view(-1)])
            assert kept[0] is model[0].weight.grad

        ranks.run(body)


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("kept_in_step", [0, 3])
def test_a_sparse_gradient_that_is_kept(set_to_none: bool, kept_in_step: int) -> None:
    def body(rank: int) -> None:
        layer = torch.nn.Embedding(40, 2, sparse=True, dtype=F64)
        plain = torch.optim.SGD(layer.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, layer.named_parameters())
        kept: list[torch.Tensor] = []
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none)
            layer(torch.tensor([step, 10 + rank])).sum().backward()
            optimizer.synchronize()
            assert layer.weight.grad is not None
            if step == kept_in_step:
                kept = [layer.weight.grad]
        seen = kept_in_step if set_to_none else STEPS - 1
        rows = kept[0].to_dense()[:, 0]
        assert (rows[seen], rows[10], rows[11]) == (1.0, 0.5, 0.5)
        assert (kept[0] is layer.weight.grad) == (not set_to_none)

    run_ranks(2, body)


def test_views_of_a_gradient_keep_its_values_and_the_bucket_comes_back() -> None:
    with ThreadRanks(2) as ranks:

        def body(rank: int) -> None:
            model = make_model(0, F64)
            optimizer = wrapped(model)
            kept: dict[int, tuple[object, torch.Tensor]] = {}
            direct = []
            for step in range(STEPS + 4):
                if step == STEPS:
                    kept.clear()
                optimizer.zero_grad()
                loss_of(model, *batch(rank, step, F64)).backward()
                optimizer.step()
                direct.append(ranks.engines[rank].statistics()["direct_batches"])
                gradient = gradients(model)[0]
                if rank == 0 and step < STEPS:
                    kept[step] = (gradient.view(-1), gradient.numpy())[step % 2], gradient.clone()
                del gradient
                for view, then in kept.values():
                    assert torch.equal(torch.as_tensor(view).view_as(then), then)
            assert_ranks_agree(model)
            assert direct[-1] >= direct[STEPS] + 2

        ranks.run(body)


@pytest.mark.parametrize("buckets", [False, True])
def test_what_no_rank_has_used_is_left_alone(buckets: bool) -> None:
    with ThreadRanks(3) as ranks:

        def body(rank: int) -> None:
            used, table = torch.nn.Linear(2, 1, dtype=F64), torch.nn.Embedding(40, 2, sparse=True)
            torch.nn.init.ones_(table.weight)
            sometimes = torch.nn.Parameter(torch.ones(3, dtype=F64))
            params = [
                *used.named_parameters("used"),
                ("table", table.weight),
                ("sometimes", sometimes),
                ("never", torch.nn.Parameter(torch.ones(3, dtype=F64))),
            ]
            plain = torch.optim.SGD([p for _, p in params], 0.1, momentum=0.9)
            optimizer = hvd.DistributedOptimizer(plain, params, gradient_buckets=buckets)
            for step in range(STEPS):
                optimizer.zero_grad()
                loss = used(torch.ones(1, 2, dtype=F64)).sum()
                # All ranks, none, rank 1, none, …
                if step in (0, 2 + 2 * rank):
                    loss = loss + (sometimes * (rank + 1)).sum() + table(torch.tensor([rank])).sum()
                loss.backward()
                before = sometimes.detach().clone(), table.weight.detach().clone()
                optimizer.step()
                after = sometimes.detach(), table.weight.detach()
                if step in (0, 2, 4):
                    assert sometimes.grad is not None
                    assert table.weight.grad is not None
                    share = 2.0 if step == 0 else step / 6
                    assert_close([sometimes.grad], [torch.full((3,), share, dtype=F64)])
                else:
                    assert sometimes.grad is None
                    assert table.weight.grad is None
                moved = [not torch.equal(*pair) for pair in zip(before, after, strict=True)]
                assert moved == [step in (0, 2, 4)] * 2
                assert params[-1][1].grad is None
            assert_ranks_agree(torch.nn.ParameterList([sometimes, table.weight]))

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


@pytest.mark.parametrize("buckets", [False, True])
def test_what_the_backward_pass_still_reads_is_not_changed(buckets: bool) -> None:
    def body(rank: int) -> list[torch.Tensor]:
        early, late = (torch.nn.Parameter(torch.ones(2, 2, dtype=F64)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([early, late], lr=0.0),
            [("early", early), ("late", late)],
            op=hvd.Sum,
            gradient_buckets=buckets,
        )
        factors = torch.arange(4, dtype=F64) + rank

        def wait_until_reduced(_: torch.Tensor) -> None:
            for in_flight in optimizer._reducer._in_flight:
                in_flight.wait()

        for _ in range(STEPS):
            optimizer.zero_grad()
            squares = late.square()
            squares.register_hook(wait_until_reduced)
            # Backward, both get views of the same array, of which autograd makes no copies.
            ((early.view(-1) + squares.view(-1)) * factors).sum().backward()
            optimizer.step()
        return [early.grad, late.grad]

    total = 2 * torch.arange(4, dtype=F64).view(2, 2) + 1
    for found in run_ranks(2, body):
        assert_close(found, [total, 2 * total])


@pytest.mark.parametrize("buckets", [False, True])
def test_gradients_that_autograd_makes_of_the_same_memory(buckets: bool) -> None:
    def body(rank: int) -> list[torch.Tensor]:
        params = [torch.nn.Parameter(torch.ones(1 << 17, 2)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params, lr=0.0), gradient_buckets=buckets
        )
        for _ in range(STEPS):
            optimizer.zero_grad()
            ((params[0].view(-1) + params[1].view(-1)) * float(rank)).sum().backward()
            assert params[0].grad.data_ptr() == params[1].grad.data_ptr()
            optimizer.step()
        return [param.grad for param in params]

    for found in run_ranks(3, body):
        assert_close(found, [torch.ones(1 << 17, 2)] * 2)
