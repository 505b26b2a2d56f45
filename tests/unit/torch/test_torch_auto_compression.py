"""Compression.auto in PyTorch: int8 between slow hosts, with its errors kept, else nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import horovod.torch as hvd
from horovod._rank.start import engine_options
from horovod._rendezvous.link_speed import LinkSpeeds
from horovod.testing import run_ranks, threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod import _native

COUNT = 600
SLOW, FAST = 1.25e7, 1.25e9


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the measured speed of the links of all hosts, in bytes per second."""

    def set_speed(bytes_per_s: float) -> None:
        def options(config: Any, names: Any) -> _native.EngineOptions:
            return engine_options(config, names, speeds=LinkSpeeds(4e-5, (bytes_per_s,) * 4))

        monkeypatch.setattr(threads, "engine_options", options)

    return set_speed


def _gradient(rank: int) -> torch.Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(rank))


def _train(name: str, **options: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    hvd.init()
    compression: Any = getattr(hvd.Compression, name)
    param = torch.nn.Parameter(torch.zeros(COUNT))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([param], lr=1.0), [("weight", param)], compression=compression, **options
    )
    for _ in range(3):
        optimizer.zero_grad()
        (param * _gradient(hvd.rank())).sum().backward()
        optimizer.step()
    reduced = hvd.allreduce(_gradient(hvd.rank()), compression=compression)
    return param.detach().clone(), reduced, optimizer.state_dict()


@pytest.mark.parametrize(
    ("hosts", "speed", "same_as"),
    [
        ([1, 1, 1], SLOW, "int8"),
        ([1, 1, 1], FAST, "none"),
        ([1, 2], 0.0, "none"),
        ([3], SLOW, "none"),
    ],
)
def test_it_does_what_the_links_are_worth(
    links: Callable[[float], None], hosts: list[int], speed: float, same_as: str
) -> None:
    links(speed)
    automatic = run_ranks(3, _train, "auto", hosts=hosts)
    expected = run_ranks(3, _train, same_as, hosts=hosts)
    for (param, reduced, state), (wanted, also_wanted, _) in zip(automatic, expected, strict=True):
        assert torch.equal(param, wanted)
        assert torch.equal(reduced, also_wanted)
        assert bool(state["error_feedback"]["residuals"]) == (same_as == "int8")


def test_a_process_set_inside_of_a_host_is_left_alone(links: Callable[[float], None]) -> None:
    links(SLOW)

    def all_ranks() -> None:
        hvd.init()
        pair = hvd.add_process_set([0, 1])
        gradient = _gradient(hvd.rank())
        if hvd.rank() < 2:
            inside = hvd.allreduce(gradient, compression=hvd.Compression.auto, process_set=pair)
            assert torch.equal(inside, (_gradient(0) + _gradient(1)) / 2)
        between = hvd.allreduce(gradient, compression=hvd.Compression.auto)
        exact = torch.stack([_gradient(rank) for rank in range(3)]).mean(0)
        assert 0 < (between - exact).abs().max() < exact.abs().max() / 20

    run_ranks(3, all_ranks, hosts=[2, 1])


def test_what_8_bits_are_not_for_travels_as_it_is(links: Callable[[float], None]) -> None:
    links(SLOW)

    def train() -> None:
        hvd.init()
        rank, auto = hvd.rank(), hvd.Compression.auto
        most = hvd.allreduce(_gradient(rank), op=hvd.Max, compression=auto)
        assert torch.equal(most, torch.maximum(_gradient(0), _gradient(1)))
        part = hvd.reducescatter(_gradient(rank), op=hvd.Sum, compression=auto)
        assert torch.equal(part, (_gradient(0) + _gradient(1))[rank * COUNT // 2 :][: COUNT // 2])
        assert hvd.allreduce(torch.tensor([3]), op=hvd.Sum, compression=auto).tolist() == [6]
        for options in ({"op": hvd.Adasum}, {"shard_state": True}):
            param = torch.nn.Parameter(torch.zeros(COUNT))
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD([param], lr=1.0), compression=auto, **options
            )
            (param * _gradient(rank)).sum().backward()
            optimizer.step()
        table = torch.nn.Embedding(4, 3, sparse=True)
        with torch.no_grad():
            table.weight.zero_()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), compression=auto
        )
        table(torch.tensor([rank])).sum().backward()
        optimizer.step()
        assert table.weight[:2].flatten().tolist() == [-0.5] * 6
        param = torch.nn.Parameter(torch.zeros(COUNT))
        local = hvd.LocalSGD(torch.optim.SGD([param], lr=1.0), every=1, compression=auto)
        (param * _gradient(rank)).sum().backward()
        local.step()
        local.synchronize()
        assert (param + (_gradient(0) + _gradient(1)) / 2).abs().max() < 1e-6

    run_ranks(2, train, hosts=[1, 1])
