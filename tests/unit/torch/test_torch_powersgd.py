"""PowerSGD in PyTorch: as the paper says, the same bits on all ranks, and nothing is lost."""

from __future__ import annotations

import copy
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import horovod.torch as hvd
from horovod.errors import HorovodInternalError, UsageError
from horovod.testing import run_ranks
from horovod.torch import powersgd

SHAPES = {"matrix": (40, 30), "kernel": (16, 8, 3, 3), "vector": (50,), "small": (3, 3)}


def _gradient(name: str, rank: int, step: int) -> torch.Tensor:
    seed = 1000 * step + 10 * rank + list(SHAPES).index(name)
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(seed))


def _optimizer(
    names: tuple[str, ...] = tuple(SHAPES), power: int = 2, **options: Any
) -> tuple[dict[str, torch.Tensor], Any]:
    params = {name: torch.nn.Parameter(torch.zeros(SHAPES[name])) for name in names}
    plain = torch.optim.SGD(params.values(), lr=1.0)
    compression = hvd.Compression.powersgd(power)
    made = hvd.DistributedOptimizer(plain, params.items(), compression=compression, **options)
    return dict(params), made


def _backward(params: dict[str, torch.Tensor], step: int) -> None:
    rank = hvd.rank()
    torch.stack([(p * _gradient(n, rank, step)).sum() for n, p in params.items()]).sum().backward()


def _step(params: dict[str, torch.Tensor], optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    _backward(params, step)
    optimizer.step()


def _reference(name: str, num_ranks: int, steps: int, power: int) -> Any:
    """Algorithms 1 and 2 of the paper in NumPy: the sum of all steps, and the errors."""
    rows = SHAPES[name][0]
    columns = int(np.prod(SHAPES[name][1:]))
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    right = torch.randn(columns, power, generator=generator).numpy().astype(np.float64)
    errors = np.zeros((num_ranks, rows, columns))
    total = np.zeros((rows, columns))
    for step in range(steps):
        given = [_gradient(name, rank, step).reshape(rows, columns) for rank in range(num_ranks)]
        whole = np.stack([each.numpy() for each in given]) + errors
        left, _ = np.linalg.qr((whole @ right).mean(0))
        own = whole.transpose(0, 2, 1) @ left
        right = own.mean(0)
        errors = whole - left @ own.transpose(0, 2, 1)
        total += left @ right.T
    return total, errors


@pytest.mark.parametrize("power", [1, 3])
def test_it_does_what_the_paper_says(power: int) -> None:
    num_ranks, steps = 3, 5

    def train() -> Any:
        hvd.init()
        params, optimizer = _optimizer(power=power)
        for step in range(steps):
            _step(params, optimizer, step)
        values = {name: param.detach().numpy() for name, param in params.items()}
        return values, optimizer.state_dict()["powersgd"]

    results = run_ranks(num_ranks, train)
    for name in ("matrix", "kernel"):
        total, errors = _reference(name, num_ranks, steps, power)
        for rank, (values, state) in enumerate(results):
            assert np.abs(values[name].reshape(total.shape) + total).max() < 1e-4
            assert np.abs(state["errors"][name].numpy() - errors[rank]).max() < 1e-4
            assert np.array_equal(values[name], results[0][0][name])
    for name in ("vector", "small"):
        means = [
            torch.stack([_gradient(name, rank, step) for rank in range(num_ranks)]).mean(0)
            for step in range(steps)
        ]
        assert np.abs(results[0][0][name] + torch.stack(means).sum(0).numpy()).max() < 1e-5
        assert name not in results[0][1]["errors"]


def test_nothing_is_lost_with_weights_passes_and_process_sets() -> None:
    weights = torch.tensor([1.0, 3.0])

    def train() -> Any:
        hvd.init()
        pair = hvd.add_process_set([0, 2])
        if hvd.rank() == 1:
            return None
        own = hvd.rank() // 2
        params, optimizer = _optimizer(("matrix",), process_set=pair, weight=float(weights[own]))
        for step in range(4):
            _step(params, optimizer, step)
        return params["matrix"].detach(), optimizer.state_dict()["powersgd"]["errors"]["matrix"]

    results = run_ranks(3, train)
    shares = weights / weights.sum()
    applied = -results[0][0]
    assert torch.equal(applied, -results[2][0])
    given = sum(
        share * _gradient("matrix", rank, step)
        for step in range(4)
        for share, rank in zip(shares, (0, 2), strict=True)
    )
    left = shares[0] * results[0][1] + shares[1] * results[2][1]
    assert (given - applied - left).abs().max() < 1e-4
    assert left.abs().max() > 0.1


def test_a_rank_of_weight_zero_keeps_its_error_and_may_have_any_gradient() -> None:
    def train() -> None:
        hvd.init()
        params, optimizer = _optimizer(("matrix",), weight=1.0)
        _step(params, optimizer, 0)
        before = optimizer.state_dict()["powersgd"]["errors"]["matrix"].clone()
        optimizer.set_weight(float(hvd.rank()))
        optimizer.zero_grad()
        bad = torch.full(SHAPES["matrix"], torch.inf)
        (params["matrix"] * (_gradient("matrix", 1, 1) if hvd.rank() else bad)).sum().backward()
        optimizer.step()
        assert torch.isfinite(params["matrix"]).all()
        after = optimizer.state_dict()["powersgd"]["errors"]["matrix"]
        assert torch.equal(before, after) == (hvd.rank() == 0)

    run_ranks(2, train)


def test_gradients_of_low_rank_arrive_whole() -> None:
    def train() -> None:
        hvd.init()
        params, optimizer = _optimizer(("matrix",), power=2)
        generator = torch.Generator().manual_seed(7)
        exact = torch.randn(40, 1, generator=generator) @ torch.randn(1, 30, generator=generator)
        (params["matrix"] * exact * (1.0 + hvd.rank())).sum().backward()
        optimizer.step()
        assert (params["matrix"] + 1.5 * exact).abs().max() < 1e-4
        # The second column of P had nothing to add, and must not stay zero.
        factor = optimizer.state_dict()["powersgd"]["factors"]["matrix"]
        assert (factor.norm(dim=0) > 0).all()
        optimizer.zero_grad()
        (params["matrix"] * 0.0).sum().backward()
        before = params["matrix"].detach().clone()
        optimizer.step()
        assert (params["matrix"] - before).abs().max() < 1e-5
        assert (optimizer.state_dict()["powersgd"]["factors"]["matrix"].norm(dim=0) > 0).all()

    run_ranks(2, train)


def test_each_rank_saves_and_loads_its_own_error_and_all_share_q() -> None:
    def train() -> None:
        hvd.init()
        params, optimizer = _optimizer(("matrix",))
        _step(params, optimizer, 0)
        saved = copy.deepcopy(optimizer.state_dict())
        before = params["matrix"].detach().clone()
        _step(params, optimizer, 1)
        expected = params["matrix"].detach().clone()
        with torch.no_grad():
            params["matrix"].copy_(before)
        optimizer.load_state_dict(saved)
        _step(params, optimizer, 1)
        assert torch.equal(params["matrix"], expected)
        of_root = hvd.broadcast_object(saved, root_rank=0)
        optimizer.load_state_dict(of_root)
        known = optimizer.state_dict()["powersgd"]
        assert ("matrix" in known["errors"]) == (hvd.rank() == 0)
        assert torch.equal(known["factors"]["matrix"], of_root["powersgd"]["factors"]["matrix"])
        torch.optim.SGD(params.values(), lr=0.1).load_state_dict(saved)
        _step(params, optimizer, 2)
        own = optimizer.state_dict()["powersgd"]["errors"]["matrix"].clone()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert torch.equal(optimizer.state_dict()["powersgd"]["errors"]["matrix"], own)

    run_ranks(2, train)


def test_a_newcomer_without_state_has_the_same_results() -> None:
    def train() -> torch.Tensor:
        hvd.init()
        params, optimizer = _optimizer(("matrix", "kernel"))
        fresh = copy.deepcopy(optimizer.state_dict())
        for step in range(6):
            if step == 3 and hvd.rank() == 1:
                optimizer.load_state_dict(fresh)
            _step(params, optimizer, step)
        return torch.cat([param.detach().flatten() for param in params.values()])

    first, second = run_ranks(2, train)
    assert torch.equal(first, second)


def test_a_state_of_another_model_is_refused() -> None:
    def train() -> None:
        hvd.init()
        params, optimizer = _optimizer(("matrix",), power=3)
        _step(params, optimizer, 0)
        saved = optimizer.state_dict()
        _, other = _optimizer(("matrix",), power=2)
        other.load_state_dict(saved)
        params = dict(zip(("matrix",), other.param_groups[0]["params"], strict=True))
        with pytest.raises(UsageError, match="matrix is that of another model or rank"):
            _step(params, other, 1)

    run_ranks(2, train)


def test_infinity_reaches_all_ranks_and_leaves_errors_alone() -> None:
    def train() -> None:
        hvd.init()
        params, optimizer = _optimizer(("matrix",))
        _step(params, optimizer, 0)
        before = copy.deepcopy(optimizer.state_dict()["powersgd"])
        optimizer.zero_grad()
        bad = _gradient("matrix", hvd.rank(), 1)
        if hvd.rank() == 1:
            bad[3, 4] = torch.inf
        (params["matrix"] * bad).sum().backward()
        optimizer.synchronize()
        assert params["matrix"].grad is not None
        assert params["matrix"].grad.isnan().all()
        with optimizer.skip_synchronize():
            optimizer.step()
        after = optimizer.state_dict()["powersgd"]
        for part in ("errors", "factors"):
            assert torch.equal(before[part]["matrix"], after[part]["matrix"])
        with torch.no_grad():
            params["matrix"].zero_()
        _step(params, optimizer, 2)
        assert torch.isfinite(params["matrix"]).all()
        assert optimizer.state_dict()["powersgd"]["errors"]["matrix"].isfinite().all()

    run_ranks(2, train)


def test_dropped_gradients_change_nothing() -> None:
    def train() -> None:
        hvd.init()
        params, optimizer = _optimizer(("matrix",))
        _step(params, optimizer, 0)
        before = copy.deepcopy(optimizer.state_dict()["powersgd"])
        optimizer.zero_grad()
        _backward(params, 1)
        optimizer.synchronize()
        optimizer.zero_grad()
        _backward(params, 2)
        optimizer.zero_grad()
        after = optimizer.state_dict()["powersgd"]
        for part in ("errors", "factors"):
            assert torch.equal(before[part]["matrix"], after[part]["matrix"])

    run_ranks(2, train)


def test_a_parameter_that_nobody_uses_has_no_gradient() -> None:
    def train() -> None:
        hvd.init()
        params, optimizer = _optimizer(("matrix", "kernel"))
        _step(params, optimizer, 0)
        error = optimizer.state_dict()["powersgd"]["errors"]["kernel"].clone()
        optimizer.zero_grad()
        _backward({"matrix": params["matrix"]}, 1)
        optimizer.step()
        assert params["kernel"].grad is None
        assert torch.equal(error, optimizer.state_dict()["powersgd"]["errors"]["kernel"])

    run_ranks(2, train)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    def train() -> torch.Tensor:
        hvd.init()
        param = torch.nn.Parameter(torch.zeros(40, 30, dtype=dtype))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([param], lr=1.0), compression=hvd.Compression.powersgd(4)
        )
        for step in range(3):
            optimizer.zero_grad()
            (param * _gradient("matrix", hvd.rank(), step).to(dtype)).sum().backward()
            optimizer.step()
        (error,) = optimizer.state_dict()["powersgd"]["errors"].values()
        assert error.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
        return param.detach()

    first, second = run_ranks(2, train)
    assert first.dtype is dtype
    assert first.abs().max() > 0.1
    assert torch.equal(first, second)


def test_it_learns_as_well_as_without() -> None:
    def train(compression: Any) -> float:
        hvd.init()
        generator = torch.Generator().manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10)
        )
        with torch.no_grad():
            for param in model.parameters():
                param.uniform_(-0.2, 0.2, generator=generator)
        inputs = torch.randn(256, 20, generator=generator)
        labels = (inputs @ torch.randn(20, 10, generator=generator)).argmax(1)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
            model.named_parameters(),
            compression=compression,
        )
        own = slice(hvd.rank(), None, hvd.size())
        for _ in range(120):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[own]), labels[own]).backward()
            optimizer.step()
        with torch.no_grad():
            return functional.cross_entropy(model(inputs), labels).item()

    plain = run_ranks(2, train, hvd.Compression.none)[0]
    compressed = run_ranks(2, train, hvd.Compression.powersgd(2))[0]
    assert plain < 0.3
    assert compressed < 0.4


def _sparse() -> None:
    table = torch.nn.Embedding(40, 30, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), compression=hvd.Compression.powersgd()
    )
    table(torch.tensor([hvd.rank()])).sum().backward()
    optimizer.step()


def _wrapped(**options: Any) -> None:
    _optimizer(("matrix",), **options)


def _local() -> None:
    param = torch.nn.Parameter(torch.zeros(40, 30))
    hvd.LocalSGD(torch.optim.SGD([param], lr=1.0), every=2, compression=hvd.Compression.powersgd())


REFUSED = {
    "op=Min": (lambda: _wrapped(op=hvd.Min), "not for MIN"),
    "Adasum": (lambda: _wrapped(op=hvd.Adasum), "not for ADASUM"),
    "groups": (lambda: _wrapped(groups=1), "leave groups out"),
    "shard_state": (lambda: _wrapped(shard_state=True), "none, fp16 and bf16 only"),
    "LocalSGD": (_local, "cannot use PowerSGDCompressor"),
    "allreduce": (
        lambda: hvd.allreduce(torch.zeros(40, 30), compression=hvd.Compression.powersgd()),
        "DistributedOptimizer of PyTorch only",
    ),
    "reducescatter": (
        lambda: hvd.reducescatter(torch.zeros(40, 30), compression=hvd.Compression.powersgd()),
        "cannot use PowerSGDCompressor",
    ),
    "sparse": (_sparse, "a sparse gradient"),
    "rank=0": (lambda: hvd.Compression.powersgd(0), "rank is a whole number above 0"),
    "rank=True": (lambda: hvd.Compression.powersgd(True), "rank is a whole number above 0"),
    "ratio": (lambda: hvd.Compression.powersgd(least_ratio=0.5), "must be at least 1"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_is_not_for_is_refused(what: str) -> None:
    use, message = REFUSED[what]

    def train() -> None:
        hvd.init()
        with pytest.raises(UsageError, match=message):
            use()

    run_ranks(2, train)


def test_ranks_of_other_matrices_are_told() -> None:
    def train() -> None:
        hvd.init()
        params, optimizer = _optimizer(("matrix",), power=1 + hvd.rank())
        with pytest.raises(HorovodInternalError, match=r"(?s)40, 1\].*40, 2\]"):
            _step(params, optimizer, 0)

    run_ranks(2, train)


def test_a_second_half_that_cannot_be_sent_fails_again_when_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def submit(part: str, wire: torch.Tensor, result: torch.Tensor) -> Any:
        if part == "q":
            raise HorovodInternalError("rank 1 was lost")

    monkeypatch.setattr(powersgd, "wait", lambda handle, tensor: None)
    param = torch.nn.Parameter(torch.ones(SHAPES["matrix"]))
    shape = powersgd.PowerSGDCompressor(2, 2.0).shape_of(param)
    assert shape is not None
    memory = powersgd.LowRankMemory({param: "matrix"})
    flight = powersgd.launch(param, torch.ones_like(param), shape, memory, submit)
    for call in (flight.advance, flight.advance, flight.wait):
        with pytest.raises(HorovodInternalError, match="rank 1"):
            call()


def test_a_backward_pass_inside_of_autocast_loses_no_precision() -> None:
    def train(inside: bool) -> torch.Tensor:
        hvd.init()
        params, optimizer = _optimizer(("matrix",))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            _step(params, optimizer, 0)
        return params["matrix"].detach()

    assert torch.equal(run_ranks(2, train, False)[0], run_ranks(2, train, True)[0])
