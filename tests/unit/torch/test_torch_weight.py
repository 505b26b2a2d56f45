"""Averages by weight, with ranks as threads."""

from __future__ import annotations

import pytest
import torch
from thread_ranks import run_ranks
from torch_training import F64, assert_close, backward, gradients, local_gradients, make_model, wrap

import horovod.torch as hvd
from horovod.errors import UsageError

SAMPLES = (1.0, 3.0)


def test_other_reductions_have_no_weight() -> None:
    def body(_: int) -> None:
        model = make_model(0, F64)
        with pytest.raises(UsageError, match="op=Average"):
            wrap(model, op=hvd.Sum, weight=1.0)
        optimizer = wrap(model, op=hvd.Max)
        with pytest.raises(UsageError, match="op=Average"):
            optimizer.set_weight(2.0)

    run_ranks(1, body)


def test_every_form_of_allreduce() -> None:
    def body(rank: int) -> None:
        weight = SAMPLES[rank]
        mine = torch.tensor([1.0, 9.0], dtype=F64) * (rank + 1)
        expected = torch.tensor([1.75, 15.75], dtype=F64)
        results = [
            hvd.allreduce(mine, weight=weight),
            hvd.allreduce(mine, compression=hvd.Compression.bf16, weight=weight),
            hvd.allreduce_(mine.clone(), weight=weight),
            hvd.synchronize(hvd.allreduce_async(mine, weight=weight)),
            hvd.synchronize(hvd.allreduce_async_(mine.clone(), weight=weight)),
            *hvd.grouped_allreduce([mine, mine], weight=weight),
            *hvd.grouped_allreduce_([mine.clone()], weight=weight),
            *hvd.synchronize(hvd.grouped_allreduce_async([mine], weight=weight)),
            *hvd.synchronize(hvd.grouped_allreduce_async_([mine.clone()], weight=weight)),
        ]
        assert_close(results, [expected] * len(results))

    run_ranks(2, body)


def test_the_gradient_is_averaged_by_the_same_weights() -> None:
    def body(rank: int) -> None:
        x = torch.ones(2, dtype=F64, requires_grad=True)
        (hvd.allreduce(x, weight=SAMPLES[rank]) * (rank + 1)).sum().backward()
        assert_close([x.grad], [torch.full((2,), 1.75, dtype=F64)])

    run_ranks(2, body)


def test_a_rank_without_weight_may_have_any_gradients() -> None:
    def body(rank: int) -> None:
        for groups in (None, 2):
            model = make_model(0, F64)
            optimizer = wrap(model, weight=lambda: float(rank == 0), groups=groups)
            backward(model, rank)
            optimizer.synchronize()
            assert_close(gradients(model), local_gradients(0))
            optimizer.zero_grad()
            x = torch.ones(0 if rank else 2, 5, dtype=F64)
            model(x).mean().backward()
            optimizer.synchronize()
            assert all(bool(gradient.isfinite().all()) for gradient in gradients(model))

    run_ranks(2, body)


def test_the_weight_cannot_change_behind_gradients_that_have_left() -> None:
    def body(rank: int) -> None:
        model = make_model(0, F64)
        optimizer = wrap(model, weight=1.0)
        backward(model, rank)
        with pytest.raises(UsageError, match="before the last backward pass"):
            optimizer.set_weight(2.0)
        optimizer.step()
        optimizer.set_weight(2.0)

    run_ranks(2, body)


def test_sparse_gradients_by_weight() -> None:
    def body(rank: int) -> None:
        layer = torch.nn.Embedding(60, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(layer.parameters(), lr=1.0), weight=SAMPLES[rank]
        )
        for step in range(2):
            optimizer.zero_grad()
            if step:
                optimizer.set_weight(float(1 - rank))
            layer(torch.tensor([1, 2 + rank])).sum().backward()
            optimizer.synchronize()
            assert layer.weight.grad is not None
            rows = layer.weight.grad.to_dense()[:4, 0].tolist()
            assert rows == ([0, 1, 1, 0] if step else [0, 1, 0.25, 0.75])
        optimizer.zero_grad()
        optimizer.set_weight(0.0)
        layer(torch.tensor([1])).sum().backward()
        with pytest.raises(hvd.HorovodInternalError, match="weights of all ranks"):
            optimizer.step()
        optimizer.zero_grad()
        optimizer.set_weight(None if rank else 1.0)
        layer(torch.tensor([1])).sum().backward()
        with pytest.raises(hvd.HorovodInternalError, match=r"weight 1\.0.*no weight"):
            optimizer.step()

    run_ranks(2, body)
