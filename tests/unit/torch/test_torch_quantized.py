"""Compression to 8 bits in PyTorch: rounding errors come back, and what cannot be is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

import horovod.torch as hvd
from horovod.errors import HorovodInternalError, UsageError
from horovod.testing import run_ranks

EACH = ("int8", "fp8", "fp8_e5m2")
each_compression = pytest.mark.parametrize("name", EACH)
COUNT = 600


def _compression(name: str) -> Any:
    return getattr(hvd.Compression, name)


def _gradient(rank: int, step: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(COUNT, generator=generator)


def _optimizer(name: str, fused: bool = False, **options: Any) -> tuple[torch.Tensor, Any]:
    param = torch.nn.Parameter(torch.zeros(COUNT))
    plain = torch.optim.SGD([param], lr=1.0, fused=fused)
    named = [("weight", param)]
    return param, hvd.DistributedOptimizer(plain, named, compression=_compression(name), **options)


def _step(param: torch.Tensor, optimizer: Any, step: int = 0) -> None:
    optimizer.zero_grad()
    (param * _gradient(hvd.rank(), step)).sum().backward()
    optimizer.step()


@each_compression
def test_errors_do_not_add_up(name: str) -> None:
    steps = 12

    def train() -> tuple[torch.Tensor, torch.Tensor]:
        hvd.init()
        param, optimizer = _optimizer(name)
        for _ in range(steps):
            _step(param, optimizer)
        alone = hvd.allreduce(_gradient(hvd.rank()), compression=_compression(name))
        return param.detach(), alone

    results = run_ranks(4, train, hosts=[2, 2])
    exact = torch.stack([_gradient(rank) for rank in range(4)]).mean(0)
    with_feedback, alone = results[0]
    assert (alone - exact).abs().max() > 1e-4
    assert (with_feedback + steps * exact).abs().max() < steps * (alone - exact).abs().max() / 2
    assert all(torch.equal(param, with_feedback) for param, _ in results)


@each_compression
def test_groups_weights_and_process_sets(name: str) -> None:
    def train() -> None:
        hvd.init()
        pair = hvd.add_process_set([0, 2])
        tensors = [_gradient(hvd.rank()), torch.ones(3, dtype=torch.int64)]
        group = hvd.grouped_allreduce(tensors, compression=_compression(name), op=hvd.Sum)
        assert group[1].tolist() == [3, 3, 3]
        exact = sum(_gradient(rank) for rank in range(3))
        assert (group[0] - exact).abs().max() < exact.abs().max() / 4
        if hvd.rank() != 1:
            both = hvd.allreduce(
                _gradient(hvd.rank()), compression=_compression(name), process_set=pair
            )
            mean = (_gradient(0) + _gradient(2)) / 2
            assert 0 < (both - mean).abs().max() < mean.abs().max() / 4
        param, optimizer = _optimizer(name, weight=hvd.rank() + 1.0)
        _step(param, optimizer)
        mean = sum((rank + 1) / 6 * _gradient(rank) for rank in range(3))
        assert 0 < (param + mean).abs().max() < mean.abs().max() / 4

    run_ranks(3, train, hosts=[1, 1, 1])


def test_each_rank_saves_and_loads_its_own_error() -> None:
    def train() -> None:
        hvd.init()
        param, optimizer = _optimizer("int8")
        _step(param, optimizer)
        saved = copy.deepcopy(optimizer.state_dict())
        before = param.detach().clone()
        own = saved["error_feedback"]["residuals"]["weight"]
        assert own.abs().max() > 0
        _step(param, optimizer, step=1)
        expected = param.detach().clone()
        with torch.no_grad():
            param.copy_(before)
        optimizer.load_state_dict(saved)
        _step(param, optimizer, step=1)
        assert torch.equal(param, expected)
        # The state of rank 0 holds no error of rank 1, and must not count twice.
        of_root = hvd.broadcast_object(saved, root_rank=0)
        optimizer.load_state_dict(of_root)
        known = optimizer.state_dict()["error_feedback"]["residuals"]
        assert ("weight" in known) == (hvd.rank() == 0)
        torch.optim.SGD([param], lr=0.1).load_state_dict(saved)

    run_ranks(2, train, hosts=[1, 1])


def test_a_broadcast_leaves_each_rank_its_own_error() -> None:
    def train() -> None:
        hvd.init()
        param, optimizer = _optimizer("int8")
        _step(param, optimizer)
        before = optimizer.state_dict()["error_feedback"]["residuals"]["weight"].clone()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        after = optimizer.state_dict()["error_feedback"]["residuals"]["weight"]
        assert torch.equal(before, after)

    run_ranks(2, train, hosts=[1, 1])


def test_a_single_host_compresses_nothing_and_keeps_nothing() -> None:
    def train() -> None:
        hvd.init()
        param, optimizer = _optimizer("int8")
        for _ in range(3):
            _step(param, optimizer)
        mean = (_gradient(0) + _gradient(1)) / 2
        assert torch.equal(param, -(mean + mean + mean))
        assert optimizer.state_dict()["error_feedback"]["residuals"] == {}

    run_ranks(2, train)


def test_ranks_whose_buckets_have_other_compressions_are_told() -> None:
    def train() -> None:
        hvd.init()
        param, optimizer = _optimizer("int8")
        for step in range(2):
            _step(param, optimizer, step)
        reducer = optimizer._reducer
        assert reducer._bucket_of(param) is not None
        if hvd.rank() == 1:
            reducer._settings = replace(reducer._settings, compression=hvd.Compression.none)
        with pytest.raises(HorovodInternalError) as raised:
            _step(param, optimizer)
        assert "compressions between hosts" in str(raised.value)
        assert "int8 between hosts" in str(raised.value)

    run_ranks(2, train)


def test_infinite_gradients_stay_infinite_for_one_step() -> None:
    def train() -> None:
        hvd.init()
        param, optimizer = _optimizer("int8")
        optimizer.zero_grad()
        loss = param.sum() * (float("inf") if hvd.rank() == 1 else 1.0)
        loss.backward()
        optimizer.synchronize()
        assert not torch.isfinite(param.grad).any()
        optimizer.zero_grad()
        _step(param, optimizer)
        assert torch.isfinite(param).all()

    run_ranks(2, train, hosts=[1, 1])


def test_gradients_that_no_step_uses_leave_no_error() -> None:
    def train() -> None:
        hvd.init()
        param, optimizer = _optimizer("int8")
        fresh, other = _optimizer("int8")
        optimizer.zero_grad()
        (param * _gradient(hvd.rank()) * 1e6).sum().backward()
        optimizer.synchronize()
        for step in range(2):
            _step(param, optimizer, step)
            _step(fresh, other, step)
        assert torch.equal(param, fresh)

    run_ranks(2, train, hosts=[1, 1])


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_leaves_no_error(fused: bool) -> None:
    def train() -> None:
        hvd.init()
        param, optimizer = _optimizer("int8", fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        large = _gradient(hvd.rank()) * 1e6
        large[0] = float("inf")
        for gradient in (large, _gradient(hvd.rank())):
            optimizer.zero_grad()
            scaler.scale((param * gradient).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 1.0
        fresh, other = _optimizer("int8", fused)
        _step(fresh, other)
        assert torch.equal(param, fresh)

    run_ranks(2, train, hosts=[1, 1])


def test_what_cannot_be_quantized_is_refused() -> None:
    def refused() -> None:
        hvd.init()
        int8 = hvd.Compression.int8
        param = torch.nn.Parameter(torch.zeros(4))
        plain = torch.optim.SGD([param], lr=1.0)
        for call in (
            lambda: hvd.allreduce(torch.ones(3), op=hvd.Max, compression=int8),
            lambda: hvd.DistributedOptimizer(plain, compression=int8, op=hvd.Adasum),
            lambda: hvd.LocalSGD(plain, every=2, compression=int8),
            lambda: hvd.reducescatter(torch.ones(3), compression=int8),
        ):
            with pytest.raises(UsageError, match="8 bits"):
                call()
        table = torch.nn.Embedding(5, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), compression=int8
        )
        table(torch.tensor([1])).sum().backward()
        with pytest.raises(UsageError, match="sparse_as_dense"):
            optimizer.step()

    run_ranks(2, refused)


def test_an_elastic_state_restores_the_error_of_its_own_rank() -> None:
    def train() -> None:
        hvd.init()
        param, optimizer = _optimizer("int8")
        _step(param, optimizer)
        state = hvd.elastic.TorchState(optimizer=optimizer)
        state.save()
        before = _kept(optimizer).clone()
        _step(param, optimizer, step=1)
        assert not torch.equal(_kept(optimizer), before)
        state.restore()
        assert torch.equal(_kept(optimizer), before)
        state.sync()
        assert torch.equal(_kept(optimizer), before)

    run_ranks(2, train, hosts=[1, 1])


def _kept(optimizer: Any) -> torch.Tensor:
    kept: torch.Tensor = optimizer.state_dict()["error_feedback"]["residuals"]["weight"]
    return kept
