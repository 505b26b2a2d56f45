"""A rank whose last step takes longer than that of others, which have left by then."""

from __future__ import annotations

import threading

import pytest
import torch

import horovod.torch as hvd
from horovod._train import sampled_sync_check
from horovod.errors import ShutDownError
from horovod.testing import run_ranks
from horovod.torch.optimizer import ReducingOptimizer


def wait_for_the_others_to_leave() -> None:
    with pytest.raises(hvd.HorovodInternalError, match="has shut Horovod down"):
        hvd.allreduce(torch.zeros(1), name="nobody_answers")


def train(num_models: int, num_steps: int) -> list[list[float]]:
    """Train models with an optimizer each; rank 0 takes the last step when it is alone."""
    hvd.init()
    models = [torch.nn.Linear(2, 1) for _ in range(num_models)]
    optimizers = []
    for index, model in enumerate(models):
        for param in model.parameters():
            torch.nn.init.zeros_(param)
        names = [(f"{index}.{name}", param) for name, param in model.named_parameters()]
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizers.append(hvd.DistributedOptimizer(plain, names))
    for step in range(num_steps):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.full((1, 2), 2.0 * hvd.rank())).sum().backward()
        if hvd.rank() == 0 and step == num_steps - 1:
            wait_for_the_others_to_leave()
        for optimizer in optimizers:
            optimizer.step()
    return [torch.cat([param.flatten() for param in m.parameters()]).tolist() for m in models]


@pytest.mark.parametrize("num_models", [1, 2])
@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_it_has_all_it_needs(num_models: int, num_steps: int) -> None:
    trained = [[-1.0 * num_steps] * 3] * num_models
    assert run_ranks(2, train, num_models, num_steps) == [trained] * 2


def test_a_step_leaves_nothing_in_flight_that_needs_the_step_of_another_rank() -> None:
    has_stepped = threading.Event()

    def body() -> bool:
        hvd.init()
        model = torch.nn.Linear(2, 1)
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        assert isinstance(optimizer, ReducingOptimizer)
        model(torch.ones(1, 2)).sum().backward()
        if hvd.rank() == 1:
            assert has_stepped.wait(20)
        optimizer.step()
        layouts = optimizer._reducer._layouts._handle
        ended = layouts is not None and layouts.done()
        has_stepped.set()
        return ended

    assert run_ranks(2, body) == [True, True]


def test_what_would_be_compared_later_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CHECK_IN_SYNC_STEPS", "2")
    assert run_ranks(2, train, 1, 2) == [[[-2.0] * 3]] * 2


def test_a_job_that_has_ended_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ShutDownError("rank 1 has shut Horovod down")

    monkeypatch.setattr(sampled_sync_check, "PendingCheck", refuse)
    monkeypatch.setenv("HOROVOD_CHECK_IN_SYNC_STEPS", "1")
    assert run_ranks(2, train, 1, 2) == [[[-2.0] * 3]] * 2


def test_the_step_behind_it_tells_who_has_left() -> None:
    def train_too_long() -> None:
        hvd.init()
        model = torch.nn.Linear(2, 1)
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())

        def step(is_last: bool) -> None:
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            if is_last and hvd.rank() == 0:
                wait_for_the_others_to_leave()
            optimizer.step()

        step(True)
        if hvd.rank() == 0:
            with pytest.raises(hvd.HorovodInternalError, match=r"rank 1 .* has shut Horovod down"):
                step(False)

    run_ranks(2, train_too_long)
