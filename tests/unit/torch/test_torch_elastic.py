"""The state of elastic training with PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import horovod.torch as hvd
from horovod.testing import run_ranks
from horovod.torch.elastic import state as elastic_state
from horovod.torch.elastic.state import (
    ModelStateHandler,
    OptimizerStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def model_of(seed: int) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with torch.no_grad():
        for tensor in (*model.parameters(), model[1].running_mean):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return model


def take_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    """Of this rank alone, whatever the optimizer would do with others."""
    generator = torch.Generator().manual_seed(seed)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(torch.randn(5, 3, generator=generator)).square().sum()
        value.backward()
        return value

    optimizer.step(loss)


def contents(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> list[Any]:
    """All that a rank holds, to be compared bit by bit."""
    values: list[Any] = list(model.state_dict().values())
    if optimizer is not None:
        told = optimizer.state_dict()
        values += [list(moments.values()) for moments in told["state"].values()]
        values.append([group["lr"] for group in told["param_groups"]])
    return plain(values)


def plain(value: Any) -> Any:
    """Tensors as lists."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.3),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.1, weight_decay=0.3),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1, weight_decay=0.3),
    "LBFGS": lambda params: torch.optim.LBFGS(params, lr=0.1, max_iter=2),
}


@pytest.fixture
def registry() -> Iterator[None]:
    before = list(get_handler_registry())
    yield
    set_handler_registry(before)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_newcomer_gets_every_bit_of_the_state(kind: str) -> None:
    """Its optimizer has no state yet, and decays no weight to get one."""

    def train() -> list[list[Any]]:
        hvd.init()
        model = model_of(hvd.rank())
        optimizer = OPTIMIZERS[kind](model.parameters())
        if hvd.rank() == 0:  # the survivor
            take_step(model, optimizer)
            take_step(model, optimizer)
        state = hvd.elastic.TorchState(model, optimizer)
        state.sync()
        synced = contents(model, optimizer)
        take_step(model, optimizer)
        state.restore()
        return [synced, contents(model, optimizer)]

    results = run_ranks(2, train)
    assert all(each == results[0][0] for result in results for each in result)


def test_commit_and_restore() -> None:
    hvd.init()
    model = model_of(1)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, batch=0, seen=[])
    objects = state.model, state.optimizer, state.scheduler
    at_first = contents(model, optimizer)

    def work() -> None:
        take_step(model, optimizer)
        scheduler.step()
        state.batch += 1
        state.seen.append(state.batch)

    work()
    state.restore()
    assert contents(model, optimizer) == at_first
    work()
    state.commit()
    committed = contents(model, optimizer)
    for _ in range(2):
        work()
        assert contents(model, optimizer) != committed
        state.restore()
        assert contents(model, optimizer) == committed
        assert (scheduler.last_epoch, state.batch, state.seen) == (1, 1, [1])
    assert (state.model, state.optimizer, state.scheduler) == objects
    hvd.shutdown()


def test_a_scheduler_stays_the_object_that_the_script_holds() -> None:
    def train() -> tuple[bool, int, float]:
        hvd.init()
        optimizer = torch.optim.SGD(model_of(0).parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        if hvd.rank() == 0:
            optimizer.step()
            scheduler.step()
        state = hvd.elastic.TorchState(None, optimizer, scheduler=scheduler)
        state.sync()
        assert state.model is None
        return state.scheduler is scheduler, scheduler.last_epoch, optimizer.param_groups[0]["lr"]

    assert run_ranks(2, train) == [(True, 1, 0.1)] * 2


def test_several_models_and_a_new_one() -> None:
    first, second, third = (model_of(seed) for seed in range(3))
    state = hvd.elastic.TorchState(generator=first, critic=second)
    wanted = contents(third)
    state.critic = third  # is saved
    with torch.no_grad():
        third[0].weight.zero_()
        first[0].weight.zero_()
    state.restore()
    assert contents(third) == wanted
    assert contents(first) == contents(model_of(0))


def test_the_registry_is_asked_in_its_order(registry: None) -> None:
    class Model(torch.nn.Module):
        pass

    class Mine(ModelStateHandler):
        pass

    assert get_handler_registry() is elastic_state._registry
    get_handler_registry().insert(0, (Model, Mine))
    state = hvd.elastic.TorchState(Model(), other=torch.nn.Linear(1, 1))
    assert {name: type(h) for name, h in state._handlers.items()} == {
        "other": ModelStateHandler,
        "model": Mine,
    }
    set_handler_registry([(torch.optim.Optimizer, OptimizerStateHandler)])
    assert get_handler_registry() == [(torch.optim.Optimizer, OptimizerStateHandler)]
    assert list(state._handlers) == ["other", "model"]  # made before


def test_a_handler_of_the_user_is_all_that_touches_a_value(registry: None) -> None:
    calls: list[str] = []

    class Counter:
        pass

    class CounterHandler(StateHandler):
        def save(self) -> None:
            calls.append("save")

        def restore(self) -> None:
            calls.append("restore")

        def sync(self) -> None:
            calls.append("sync")

    set_handler_registry([(Counter, CounterHandler), *get_handler_registry()])
    state = hvd.elastic.TorchState(counter=Counter(), step=0)
    state.save()
    state.restore()
    state.counter = Counter()
    hvd.init()
    state.sync()
    state.on_reset()
    hvd.shutdown()
    assert calls == ["save", "restore", "save", "sync", "save"]


def test_a_wrapped_optimizer_goes_on_after_changes() -> None:
    """Gradients that were in flight when a rank was lost are of no interest any more."""

    def train() -> tuple[list[Any], int]:
        hvd.init()
        model = model_of(hvd.rank())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=0.1), model.named_parameters()
        )
        state = hvd.elastic.TorchState(model, optimizer, step=0, rounds=0)

        @hvd.elastic.run
        def steps(state: hvd.elastic.TorchState) -> None:
            state.rounds += 1
            rounds = state.rounds
            while state.step < 8:
                optimizer.zero_grad()
                values = torch.full((5, 3), float(hvd.rank() + state.step)).sin()
                model(values + torch.arange(15).reshape(5, 3)).square().sum().backward()
                if state.step == 2 * rounds and rounds < 4:
                    state.rounds = rounds
                    state.save()
                    raise hvd.HorovodInternalError("a rank was lost in the backward pass")
                optimizer.step()
                state.step += 1

        steps(state)
        parameters = [param.tolist() for param in model.parameters()]
        return parameters, state.rounds

    results = run_ranks(2, train)
    assert results[0] == results[1]
    assert results[0][1] == 4
