"""A constant global batch of elastic training, with workers that are threads and come and go."""

from __future__ import annotations

import functools
import logging
import math
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from elastic_threads import PATIENCE_S, Died, elastic_threads
from torch.utils.data import DataLoader

import horovod.torch as hvd
from horovod._train.elastic.ledger import order_of
from horovod.errors import PeerLostError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH, BATCH_SIZE, GLOBAL_BATCH, EPOCHS = 61, 2, 9, 3
F64 = torch.float64
INPUTS = torch.randn(LENGTH, 3, dtype=F64, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS.sum(1, keepdim=True) + 1
# The ranks of a test are threads, which share a generator.
SEEDED = threading.Lock()


class Model(torch.nn.Module):
    """Some of its parameters have a gradient in some passes only."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4, dtype=F64)
        self.second = torch.nn.Linear(4, 1, dtype=F64)
        self.some = torch.nn.Parameter(torch.zeros(1, dtype=F64))
        self.never = torch.nn.Parameter(torch.zeros(1, dtype=F64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return y + self.some * x[:, :1].clamp(min=1) if bool((x[:, 0] > 0.5).any()) else y


def new_model() -> tuple[Model, torch.optim.Optimizer]:
    with SEEDED:
        torch.manual_seed(7)
        model = Model()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: Model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(x), y)


def weights_of(model: Model) -> list[float]:
    return parameters_of(model)


@functools.cache
def alone(clip: float | None = None, epochs: int = EPOCHS, drop_last: bool = False) -> list[float]:
    """What one process computes with the whole batch of each step."""
    model, optimizer = new_model()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for epoch in range(epochs):
        order = list(order_of(LENGTH, epoch))
        for first in range(0, LENGTH, GLOBAL_BATCH):
            samples = order[first : first + GLOBAL_BATCH]
            if drop_last and len(samples) < GLOBAL_BATCH:
                continue
            optimizer.zero_grad()
            # Each sample by itself, as a sample decides which parameters it uses.
            losses = [loss_of(model, INPUTS[[i]], TARGETS[[i]]) for i in samples]
            torch.stack(losses).mean().backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            scheduler.step()
    return weights_of(model)


def mean_of_samples(model: Model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    losses = [loss_of(model, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    return torch.stack(losses).mean()


def optimizer_clears(model: Model, optimizer: Any, loss: Callable[[], torch.Tensor]) -> None:
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def model_clears(model: Model, optimizer: Any, loss: Callable[[], torch.Tensor]) -> None:
    model.zero_grad()
    loss().backward()
    optimizer.step()


def clears_at_the_end(model: Model, optimizer: Any, loss: Callable[[], torch.Tensor]) -> None:
    loss().backward()
    optimizer.step()
    optimizer.zero_grad()


def model_clears_at_the_end(model: Model, optimizer: Any, loss: Callable[[], torch.Tensor]) -> None:
    loss().backward()
    optimizer.step()
    model.zero_grad()


def clips(model: Model, optimizer: Any, loss: Callable[[], torch.Tensor]) -> None:
    optimizer.zero_grad()
    loss().backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    with optimizer.skip_synchronize():
        optimizer.step()


def clips_with_horovod(model: Model, optimizer: Any, loss: Callable[[], torch.Tensor]) -> None:
    optimizer.zero_grad()
    loss().backward()
    hvd.clip_grad_norm_(optimizer, 0.05)
    optimizer.step()


BODIES = [
    optimizer_clears,
    model_clears,
    clears_at_the_end,
    model_clears_at_the_end,
    clips,
    clips_with_horovod,
]


def train(
    happens: Callable[[int, int], None],
    body: Callable[..., None] = optimizer_clears,
    data: Any = None,
    batch_size: int | None = BATCH_SIZE,
    **options: Any,
) -> tuple[list[float], list[tuple[int, int]]]:
    """Returns the weights, and the ranks and samples of each step that counts."""
    model, optimizer = new_model()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    training = hvd.elastic.Training(
        model=model, optimizer=optimizer, scheduler=scheduler, **options
    )
    values = training.track(steps=[], samples=0)
    for epoch in training.epochs(EPOCHS):
        batches = training.batches(
            (INPUTS, TARGETS) if data is None else data, batch_size, global_batch=GLOBAL_BATCH
        )
        for number, (x, y) in enumerate(batches):
            happens(epoch, number)
            body(model, optimizer, lambda x=x, y=y: mean_of_samples(model, x, y))
            scheduler.step()
            values.samples += training.samples
            if training.ends_step:
                with training.guard():
                    total = hvd.allreduce(torch.tensor([values.samples]), op=hvd.Sum, name="n")
                    values.steps.append((hvd.size(), int(total)))
                values.samples = 0
    return weights_of(model), values.steps


def nothing(epoch: int, number: int) -> None:
    """Happens."""


def run_ranks(number: int, work: Callable[[], Any]) -> list[Any]:
    with elastic_threads() as fleet:
        workers = fleet.start(work, number)
        fleet.begin(list(range(number)))
        return [worker.result(PATIENCE_S) for worker in workers]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_step_is_the_mean_over_its_samples(size: int, body: Callable[..., None]) -> None:
    results = run_ranks(size, lambda: train(nothing, body))
    expected = alone(0.05 if body in (clips, clips_with_horovod) else None)
    for weights, steps in results:
        assert weights == pytest.approx(expected, rel=1e-9)
        assert steps == [(size, n) for n in [GLOBAL_BATCH] * 6 + [LENGTH % GLOBAL_BATCH]] * EPOCHS


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
@pytest.mark.parametrize("size", [2, 5])
def test_batches_of_any_size_make_the_same_steps(size: int, batch_size: int) -> None:
    for weights, _ in run_ranks(size, lambda: train(nothing, batch_size=batch_size)):
        assert weights == pytest.approx(alone(), rel=1e-9)


@pytest.mark.parametrize("body", [optimizer_clears, clears_at_the_end, clips])
@pytest.mark.parametrize("commit_every_s", [0.0, 3600.0])
def test_ranks_are_lost_and_the_weights_are_those_of_one_process(
    commit_every_s: float, body: Callable[..., None]
) -> None:
    def happens(epoch: int, number: int) -> None:
        generation = hvd.elastic.generation()
        if generation == 0 and (epoch, number) == (0, 5) and hvd.rank() == 0:
            raise Died  # in the middle of a step of two passes
        if generation == 1 and (epoch, number) == (1, 3) and hvd.rank() == 2:
            raise Died

    with elastic_threads() as fleet:
        workers = fleet.start(lambda: train(happens, body, commit_every_s=commit_every_s), 4)
        fleet.begin([0, 1, 2, 3])
        with pytest.raises(Died):
            workers[0].result(PATIENCE_S)
        fleet.begin([1, 2, 3])
        with pytest.raises(Died):
            workers[3].result(PATIENCE_S)
        fleet.begin([1, 2])
        results = [workers[slot].result(PATIENCE_S) for slot in (1, 2)]
    expected = alone(0.05 if body is clips else None)
    for weights, steps in results:
        assert weights == pytest.approx(expected, rel=1e-9)
        counts = [GLOBAL_BATCH] * 6 + [LENGTH % GLOBAL_BATCH]
        assert [samples for _, samples in steps] == counts * EPOCHS
        assert {size for size, _ in steps} == ({2, 3, 4} if commit_every_s == 0 else {2, 3})


def test_newcomers_take_their_share(caplog: pytest.LogCaptureFixture) -> None:
    def happens(epoch: int, number: int) -> None:
        if hvd.elastic.generation() == 0 and (epoch, number) == (1, 3):
            fleet.await_generation(1)

    caplog.set_level(logging.WARNING, "horovod")
    with elastic_threads() as fleet:
        workers = fleet.start(lambda: train(happens), 2)
        fleet.begin([0, 1])
        fleet.await_waiting(2)
        workers += fleet.start(lambda: train(happens))
        fleet.begin([2, 0, 1])  # the newcomer is rank 0
        results = [worker.result(PATIENCE_S) for worker in workers]
    for weights, steps in results:
        assert weights == pytest.approx(alone(), rel=1e-9)
        assert {size for size, _ in steps} == {2, 3}
    lines = [record.getMessage() for record in caplog.records if "global batch" in record.message]
    assert lines == [
        "2 to 3 ranks: the global batch stays 9 samples: 3 ranks take 3 each, in 2 passes"
    ]


def test_a_loop_that_evaluates_does_not_speak_of_the_global_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def work() -> None:
        model, optimizer = new_model()
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        training = hvd.elastic.Training(model=model, optimizer=optimizer)
        for epoch in training.epochs(2):
            for x, y in training.batches((INPUTS, TARGETS), 3, global_batch=GLOBAL_BATCH):
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                optimizer.step()
            for number, _ in enumerate(training.batches((INPUTS,), 4)):
                if (epoch, number, hvd.size(), hvd.rank()) == (0, 2, 3, 0):
                    raise Died
                with training.guard():
                    hvd.allreduce(torch.ones(1), name="of the body")

    caplog.set_level(logging.WARNING, "horovod")
    with elastic_threads() as fleet:
        workers = fleet.start(work, 3)
        fleet.begin([0, 1, 2])
        with pytest.raises(Died):
            workers[0].result(PATIENCE_S)
        fleet.begin([1, 2])
        for worker in workers[1:]:
            worker.result(PATIENCE_S)
    lines = [record.getMessage() for record in caplog.records if "global batch" in record.message]
    assert lines == [
        "3 to 2 ranks: the global batch stays 9 samples: 2 ranks take 5 and 4, in 2 passes"
    ]


def test_two_optimizers_take_turns_in_each_pass() -> None:
    """As a network and its critic do, whose backward passes reach the parameters of both."""

    def work() -> list[float]:
        with SEEDED:
            torch.manual_seed(7)
            first, second = (torch.nn.Linear(3, 1, dtype=F64) for _ in range(2))
        before = parameters_of(first, second)
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named)
            for model, named in (
                (first, first.named_parameters("first")),
                (second, second.named_parameters("second")),
            )
        ]
        training = hvd.elastic.Training(optimizer=optimizers[0], other=optimizers[1])
        for x, y in training.batches((INPUTS, TARGETS), 2, global_batch=GLOBAL_BATCH):
            for optimizer in optimizers:
                optimizer.zero_grad()
                difference = (first(x) - second(x) ** 2 + y).mean()
                difference.square().backward()
                optimizer.step()
        after = parameters_of(first, second)
        assert all(a != b for a, b in zip(before, after, strict=True))
        return after

    results = run_ranks(3, work)
    assert results[0] == results[1] == results[2]
    assert all(map(math.isfinite, results[0]))


def parameters_of(*models: torch.nn.Module) -> list[float]:
    return [value for model in models for p in model.parameters() for value in p.view(-1).tolist()]


def test_a_data_loader_keeps_its_settings() -> None:
    data = torch.utils.data.TensorDataset(INPUTS, TARGETS)

    def loaded() -> list[float]:
        loader = DataLoader(data, batch_size=3, shuffle=True, drop_last=True)
        return train(nothing, data=loader, batch_size=None)[0]

    for weights in run_ranks(2, loaded):
        assert weights == pytest.approx(alone(drop_last=True), rel=1e-9)


def test_a_broken_step_leaves_nothing_behind(alone_: None) -> None:
    model, optimizer = new_model()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    training = hvd.elastic.Training(model=model, optimizer=optimizer)
    for x, y in training.batches((INPUTS, TARGETS), 2, global_batch=6):
        loss_of(model, x, y).mul(torch.nan).backward()
        optimizer.step()
        break
    assert training.ends_step
    for x, y in training.batches((INPUTS, TARGETS), 2, global_batch=6):
        loss_of(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(map(torch.isfinite, map(torch.tensor, weights_of(model))))


def test_a_loop_without_it_is_as_ever(alone_: None) -> None:
    model, optimizer = new_model()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    training = hvd.elastic.Training(model=model, optimizer=optimizer)
    for _ in training.batches((INPUTS, TARGETS), 2, global_batch=6):
        pass
    before = weights_of(model)
    for x, y in training.batches((INPUTS, TARGETS), 2):
        assert training.ends_step
        loss_of(model, x, y).backward()
        optimizer.step()
        assert weights_of(model) != before
        break


@pytest.fixture
def alone_() -> Any:
    hvd.init()
    yield
    hvd.shutdown()


def test_what_cannot_be_honored_is_refused(alone_: None) -> None:
    def first(**options: Any) -> None:
        model, optimizer = new_model()
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
        training = hvd.elastic.Training(optimizer=optimizer)
        next(training.batches(range(8), 2, global_batch=4))

    for options, why in (
        ({"op": hvd.Sum}, "needs op=Average"),
        ({"op": hvd.Adasum}, "needs op=Average"),
        ({"backward_passes_per_step": 2}, "backward_passes_per_step=2"),
        ({"shard_state": True}, "shard_state=True"),
    ):
        with pytest.raises(UsageError, match=why):
            first(**options)
    with pytest.raises(UsageError, match="without an optimizer"):
        next(hvd.elastic.Training().batches(range(8), 2, global_batch=4))
    for wrong in (0, 2.5):
        with pytest.raises(UsageError, match="global_batch="):
            next(hvd.elastic.Training().batches(range(8), 2, global_batch=wrong))  # type: ignore[arg-type]
    _, optimizer = new_model()
    training = hvd.elastic.Training(optimizer=hvd.DistributedOptimizer(optimizer))
    with pytest.raises(UsageError, match="batch_size=None"):
        next(training.batches(range(8), global_batch=4))


def test_a_closure_and_a_scaler_are_refused_in_the_first_step(alone_: None) -> None:
    model, optimizer = new_model()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    training = hvd.elastic.Training(optimizer=optimizer)
    for _ in training.batches(range(8), 8, global_batch=4):
        with pytest.raises(UsageError, match="closure"):
            optimizer.step(lambda: torch.zeros(1))
        break
    scaler = torch.amp.GradScaler("cpu")
    for x, y in training.batches((INPUTS, TARGETS), 8, global_batch=4):
        scaler.scale(loss_of(model, x, y)).backward()
        with pytest.raises(UsageError, match=r"if training\.ends_step"):
            scaler.step(optimizer)
        break


def test_a_scaler_unscales_all_passes_together() -> None:
    def scaled() -> list[float]:
        model, optimizer = new_model()
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        training = hvd.elastic.Training(model=model, optimizer=optimizer, scheduler=scheduler)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in training.epochs(EPOCHS):
            for x, y in training.batches((INPUTS, TARGETS), BATCH_SIZE, global_batch=GLOBAL_BATCH):
                optimizer.zero_grad()
                scaler.scale(mean_of_samples(model, x, y)).backward()
                if training.ends_step:
                    scaler.step(optimizer)
                    scaler.update()
                scheduler.step()
        return weights_of(model)

    for weights in run_ranks(2, scaled):
        assert weights == pytest.approx(alone(), rel=1e-9)


def test_a_step_whose_samples_fail_is_taken_again(alone_: None) -> None:
    """A loss between two passes, as a body that communicates finds it."""
    model, optimizer = new_model()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    training = hvd.elastic.Training(model=model, optimizer=optimizer)
    seen: list[list[int]] = []
    is_lost = False
    for batch in training.batches(range(8), 2, shuffle=False, global_batch=4):
        seen.append(batch.tolist())
        if not is_lost:
            with training.guard():
                is_lost = True
                raise PeerLostError("a rank was lost")
    assert seen == [[0, 1], [0, 1], [2, 3], [4, 5], [6, 7]]


def test_ranks_of_different_global_batches_are_told() -> None:
    def work() -> None:
        model, optimizer = new_model()
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        training = hvd.elastic.Training(model=model, optimizer=optimizer)
        for x, y in training.batches((INPUTS, TARGETS), 4, global_batch=8 + hvd.rank()):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()

    with elastic_threads() as fleet:
        workers = fleet.start(work, 2)
        fleet.begin([0, 1])
        for worker in workers:
            with pytest.raises(UsageError, match="global_batch on all ranks"):
                worker.result(PATIENCE_S)


def train_with_sampler(
    happens: Callable[[int, int], None], num_workers: int = 0
) -> tuple[list[float], list[tuple[int, int]]]:
    """The same as :func:`train`, with a function, a state and a sampler."""
    model, optimizer = new_model()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data = torch.utils.data.TensorDataset(INPUTS, TARGETS)
    sampler = hvd.elastic.ElasticBatchSampler(
        data, BATCH_SIZE, global_batch=GLOBAL_BATCH, optimizer=optimizer
    )
    loader = DataLoader(data, batch_sampler=sampler, num_workers=num_workers)

    @hvd.elastic.run
    def loop(state: Any) -> list[tuple[int, int]]:
        while state.epoch < EPOCHS:
            assert len(loader) == len(list(sampler))
            of_step = 0
            for number, (x, y) in enumerate(loader):
                happens(state.epoch, number)
                optimizer_clears(model, optimizer, lambda x=x, y=y: mean_of_samples(model, x, y))
                of_step += len(x)
                if sampler.ends_step:
                    scheduler.step()
                    state.steps.append((hvd.size(), of_step))
                    of_step = 0
                sampler.record_batch()
                if number % 3 == 1:  # also in the middle of a step
                    state.commit()
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()
        return state.steps

    state = hvd.elastic.TorchState(
        model, optimizer, sampler=sampler, scheduler=scheduler, epoch=0, steps=[]
    )
    steps = loop(state)
    return weights_of(model), steps


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_lets_the_optimizer_accumulate(num_workers: int) -> None:
    if num_workers:
        hvd.init()
        weights, steps = train_with_sampler(nothing, num_workers)
        hvd.shutdown()
        assert weights == pytest.approx(alone(), rel=1e-9)
        assert steps == [(1, n) for n in [GLOBAL_BATCH] * 6 + [LENGTH % GLOBAL_BATCH]] * EPOCHS
        return
    for weights, _ in run_ranks(3, lambda: train_with_sampler(nothing)):
        assert weights == pytest.approx(alone(), rel=1e-9)


def test_a_step_of_a_sampler_that_is_interrupted_is_taken_again() -> None:
    def happens(epoch: int, number: int) -> None:
        generation = hvd.elastic.generation()
        if generation == 0 and (epoch, number) == (0, 5) and hvd.rank() == 0:
            raise Died
        if generation == 1 and (epoch, number) == (1, 4):
            fleet.await_generation(2)

    with elastic_threads() as fleet:
        workers = fleet.start(lambda: train_with_sampler(happens), 3)
        fleet.begin([0, 1, 2])
        with pytest.raises(Died):
            workers[0].result(PATIENCE_S)
        fleet.begin([1, 2])
        fleet.await_waiting(2)
        workers += fleet.start(lambda: train_with_sampler(happens))
        fleet.begin([1, 2, 3])
        results = [worker.result(PATIENCE_S) for worker in workers[1:]]
    for weights, steps in results:
        assert weights == pytest.approx(alone(), rel=1e-9)
        assert next(size for size, _ in steps) == 3
        assert {size for size, _ in steps} == {2, 3}


def test_a_sampler_needs_an_optimizer_that_accumulates(alone_: None) -> None:
    make = hvd.elastic.ElasticBatchSampler
    _, plain = new_model()
    for optimizer in (None, plain):
        with pytest.raises(UsageError, match="give optimizer="):
            make(range(8), 2, global_batch=4, optimizer=optimizer)
    with pytest.raises(UsageError, match="without global_batch"):
        make(range(8), 2, optimizer=plain)
    with pytest.raises(UsageError, match="global_batch=0"):
        make(range(8), 2, global_batch=0, optimizer=plain)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Sum)
    with pytest.raises(UsageError, match="op=Average"):
        make(range(8), 2, global_batch=4, optimizer=optimizer)
    _, plain = new_model()
    sampler = make(range(8), 2, global_batch=4, optimizer=hvd.DistributedOptimizer(plain))
    with pytest.raises(UsageError, match="before a loop"):
        sampler.record_batch()
    with pytest.raises(UsageError, match="StatefulDataLoader"):
        iter(sampler).state_dict()  # type: ignore[attr-defined]
