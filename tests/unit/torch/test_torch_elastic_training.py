"""The simple way of elastic training, with workers that are threads and come and go."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from elastic_threads import PATIENCE_S, Died, elastic_threads
from torch.utils.data import DataLoader, IterableDataset

import horovod.torch as hvd
from horovod._rank.reports.end import report_of
from horovod._train.elastic.ledger import order_of
from horovod.errors import MismatchError, PeerLostError, UsageError
from horovod.torch.optimizer import ReducingOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH, BATCH_SIZE, EPOCHS = 31, 2, 3
F64 = torch.float64


class Counts(torch.nn.Module):
    """Its parameters count how often a step has used each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.times = torch.nn.Parameter(torch.zeros(LENGTH, dtype=F64))


class Places:
    """Samples without places."""

    def __iter__(self) -> Any:
        return iter(range(LENGTH))


def count(
    happens: Callable[[int, int], None], data: Any = None, **options: Any
) -> tuple[list[float], list[int]]:
    """Trains; returns how often each sample was used, and the sizes of all steps that count."""
    model = Counts()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
    training = hvd.elastic.Training(model=model, optimizer=optimizer, **options)
    values = training.track(sizes=[])
    for epoch in training.epochs(EPOCHS):
        samples = range(LENGTH) if data is None else data
        for step, indices in enumerate(training.batches(samples, BATCH_SIZE)):
            happens(epoch, step)
            optimizer.zero_grad()
            (-model.times[indices]).sum().mul(float(training.samples > 0)).backward()
            optimizer.step()
            values.sizes.append(hvd.size())
    return model.times.tolist(), values.sizes


def is_first_generation() -> bool:
    return hvd.elastic.generation() == 0


def test_one_rank_sees_each_sample_once() -> None:
    hvd.init()
    times, sizes = count(lambda epoch, step: None)
    hvd.shutdown()
    assert times == [EPOCHS] * LENGTH
    assert sizes == [1] * (EPOCHS * 16)


@pytest.mark.parametrize("data", [None, Places()], ids=["places", "stream"])
@pytest.mark.parametrize("commit_every_s", [0.0, 3600.0])
def test_a_newcomer_takes_its_part_of_the_rest(commit_every_s: float, data: Any) -> None:
    def happens(epoch: int, step: int) -> None:
        if is_first_generation() and (epoch, step) == (1, 2):
            fleet.await_generation(1)

    with elastic_threads() as fleet:
        workers = fleet.start(lambda: count(happens, data, commit_every_s=commit_every_s), 2)
        fleet.begin([0, 1])
        fleet.await_waiting(2)
        workers += fleet.start(lambda: count(happens, data, commit_every_s=commit_every_s))
        fleet.begin([0, 1, 2])
        results = [worker.result(PATIENCE_S) for worker in workers]
    for times, sizes in results:
        assert times == [EPOCHS] * LENGTH
        # 3 steps of 4 samples, then the other 19 by 6; then 31 by 6.
        assert sizes == [2] * (8 + 3) + [3] * (4 + 6)


@pytest.mark.parametrize("at", [(0, 0), (0, 5), (1, 0), (1, 3)])
@pytest.mark.parametrize("commit_every_s", [0.0, 3600.0])
@pytest.mark.parametrize("data", [None, Places()], ids=["places", "stream"])
def test_a_loss_repeats_the_steps_since_the_commit(
    at: tuple[int, int], commit_every_s: float, data: Any
) -> None:
    def happens(epoch: int, step: int) -> None:
        if is_first_generation() and (epoch, step) == at and hvd.rank() == 0:
            raise Died

    with elastic_threads() as fleet:
        workers = fleet.start(lambda: count(happens, data, commit_every_s=commit_every_s), 3)
        fleet.begin([0, 1, 2])
        with pytest.raises(Died):
            workers[0].result(PATIENCE_S)
        fleet.begin([1, 2])
        results = [worker.result(PATIENCE_S) for worker in workers[1:]]
    epoch, step = at
    kept = epoch * 6 + (0 if commit_every_s else step)
    left = LENGTH - (0 if commit_every_s else 6 * step)
    for times, sizes in results:
        assert times == [EPOCHS] * LENGTH
        assert sizes == [3] * kept + [2] * (-(-left // 4) + (EPOCHS - epoch - 1) * 8)


def test_losses_and_newcomers_one_after_the_other() -> None:
    def happens(epoch: int, step: int) -> None:
        generation = hvd.elastic.generation()
        if generation == 0 and (epoch, step) == (0, 3) and hvd.rank() == 2:
            raise Died
        if generation == 1 and epoch == 1 and step == 1:
            fleet.await_generation(2)
        if generation == 2 and epoch == 2 and hvd.rank() == 0:
            raise Died

    with elastic_threads() as fleet:
        workers = fleet.start(lambda: count(happens, commit_every_s=0.0), 3)
        fleet.begin([0, 1, 2])
        with pytest.raises(Died):
            workers[2].result(PATIENCE_S)
        fleet.begin([0, 1])
        fleet.await_waiting(2)
        workers += fleet.start(lambda: count(happens, commit_every_s=0.0), 2)
        fleet.begin([0, 1, 3, 4])
        with pytest.raises(Died):
            workers[0].result(PATIENCE_S)
        fleet.begin([1, 3, 4])
        results = [workers[slot].result(PATIENCE_S) for slot in (1, 3, 4)]
    assert all(times == [EPOCHS] * LENGTH for times, _ in results)
    assert len({tuple(sizes) for _, sizes in results}) == 1
    assert set(results[0][1]) == {2, 3, 4}


INPUTS = torch.randn(LENGTH, 3, dtype=F64, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS.sum(1, keepdim=True) + 1
# The ranks of a test are threads, which share a generator.
SEEDED = threading.Lock()


def new_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    with SEEDED:
        torch.manual_seed(7)
        model = torch.nn.Linear(3, 1, dtype=F64)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_a_short_batch_does_not_drop_the_passes_before_it() -> None:
    """The gradient of a step of two passes is that of all their samples, times two."""
    size, passes = 2, 2

    def train() -> list[float]:
        model, optimizer = new_model()
        optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), backward_passes_per_step=passes
        )
        training = hvd.elastic.Training(model=model, optimizer=optimizer, commit_every_s=0)
        for _ in training.epochs(EPOCHS):
            for number, (x, y) in enumerate(training.batches((INPUTS, TARGETS), BATCH_SIZE)):
                if number % passes == 0:
                    optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                if number % passes == passes - 1:
                    optimizer.step()
        return [*model.weight.flatten().tolist(), *model.bias.tolist()]

    with elastic_threads() as fleet:
        workers = fleet.start(train, size)
        fleet.begin(list(range(size)))
        results = [worker.result(PATIENCE_S) for worker in workers]
    assert results[0] == results[1]
    model, optimizer = new_model()
    for epoch in range(EPOCHS):
        order = list(order_of(LENGTH, epoch))
        for first in range(0, LENGTH, size * passes * BATCH_SIZE):
            samples = order[first : first + size * passes * BATCH_SIZE]
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(INPUTS[samples]), TARGETS[samples])
            (passes * loss).backward()
            optimizer.step()
    expected = [*model.weight.flatten().tolist(), *model.bias.tolist()]
    assert results[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("clears_first", [True, False])
def test_the_weights_are_those_of_one_process(clears_first: bool) -> None:
    """The gradient of a step is the mean over its samples, however many a rank has of them."""

    def train() -> tuple[list[float], list[int]]:
        model, optimizer = new_model()
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        training = hvd.elastic.Training(model=model, optimizer=optimizer, commit_every_s=0)
        values = training.track(sizes=[])
        for epoch in training.epochs(EPOCHS):
            for step, (x, y) in enumerate(training.batches((INPUTS, TARGETS), BATCH_SIZE)):
                if is_first_generation() and (epoch, step, hvd.rank()) == (1, 3, 1):
                    raise Died
                if clears_first:
                    optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                if not clears_first:
                    optimizer.zero_grad()
                values.sizes.append(hvd.size())
        return [*model.weight.flatten().tolist(), *model.bias.tolist()], values.sizes

    with elastic_threads() as fleet:
        workers = fleet.start(train, 4)
        fleet.begin([0, 1, 2, 3])
        with pytest.raises(Died):
            workers[1].result(PATIENCE_S)
        fleet.begin([0, 2, 3])
        results = [workers[slot].result(PATIENCE_S) for slot in (0, 2, 3)]
    assert results[0] == results[1] == results[2]
    weights, sizes = results[0]
    model, optimizer = new_model()
    steps = iter(sizes)
    for epoch in range(EPOCHS):
        order, first = order_of(LENGTH, epoch), 0
        while first < LENGTH:
            after = min(first + next(steps) * BATCH_SIZE, LENGTH)
            samples = list(order[first:after])
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(INPUTS[samples]), TARGETS[samples]).backward()
            optimizer.step()
            first = after
    assert next(steps, None) is None
    expected = [*model.weight.flatten().tolist(), *model.bias.tolist()]
    assert weights == pytest.approx(expected, rel=1e-12)


def test_code_between_loops_runs_once_for_the_state() -> None:
    """A scheduler that steps at the end of an epoch, and a loop behind another one."""

    def train() -> tuple[int, int, list[tuple[str, int]]]:
        model, optimizer = new_model()
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        training = hvd.elastic.Training(model=model, optimizer=optimizer, scheduler=scheduler)
        values = training.track(between=0, batches=[])
        for epoch in training.epochs(EPOCHS):
            for x, y in training.batches((INPUTS, TARGETS), 4):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                values.batches.append(("train", epoch))
            values.between += 1
            for step, _ in enumerate(training.batches((INPUTS,), 4, shuffle=False)):
                if is_first_generation() and (epoch, step) == (1, 1):
                    if hvd.rank() == 0:
                        raise Died
                    with training.guard():
                        hvd.allreduce(torch.ones(1), name="of the body")
                values.batches.append(("test", epoch))
            scheduler.step()
        return scheduler.last_epoch, values.between, values.batches

    with elastic_threads() as fleet:
        workers = fleet.start(train, 2)
        fleet.begin([0, 1])
        with pytest.raises(Died):
            workers[0].result(PATIENCE_S)
        workers += fleet.start(train)
        fleet.begin([1, 2])
        results = [worker.result(PATIENCE_S) for worker in workers[1:]]
    steps = [
        (loop, epoch) for epoch in range(EPOCHS) for loop in ("train", "test") for _ in range(4)
    ]
    assert results == [(EPOCHS, EPOCHS, steps)] * 2


def test_a_program_may_break_out_of_a_loop(alone: None) -> None:
    training = hvd.elastic.Training()
    seen = []
    for epoch in training.epochs(2):
        batches = training.batches(range(8), 2, shuffle=False)
        for batch in batches:
            seen.append((epoch, batch.tolist()))
            if len(seen) % 2 == 0:
                break
    assert seen == [(0, [0, 1]), (0, [2, 3]), (1, [0, 1]), (1, [2, 3])]


def test_what_was_read_ahead_does_not_count(alone: None) -> None:
    training = hvd.elastic.Training()
    loader = DataLoader(range(12), batch_size=2, num_workers=1, prefetch_factor=4)
    seen: list[list[int]] = []
    for batch in training.batches(loader):
        seen.append(batch.tolist())
        if len(seen) == 3:
            with training.guard():
                raise PeerLostError("a rank was lost")
    # Back to the commit at the beginning of the loop.
    firsts = [[number, number + 1] for number in range(0, 12, 2)]
    assert seen == firsts[:3] + firsts


def test_errors_of_the_program_go_out(alone: None) -> None:
    training = hvd.elastic.Training()
    with pytest.raises(MismatchError), training.guard():
        raise MismatchError("shapes")
    with pytest.raises(AttributeError, match="track"):
        _ = training.values.loss


class Wrong(Exception):
    """Of the program."""


class Spoiled:
    """Has a state that cannot be taken back once it is spoiled."""

    is_spoiled = False

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        if self.is_spoiled:
            raise Wrong("spoiled")


def test_an_error_of_the_program_in_a_change_is_not_one_of_the_loss(alone: None) -> None:
    state = Spoiled()
    training = hvd.elastic.Training(state=state)
    batches = training.batches(range(4), 2)
    next(batches)
    state.is_spoiled = True
    with training.guard():
        raise PeerLostError("a rank was lost")
    with pytest.raises(Wrong) as caught:
        next(batches)
    assert report_of(caught.value).lines == ("Wrong: spoiled",)


def test_data_sets_of_many_kinds(alone: None) -> None:
    training = hvd.elastic.Training()
    numbers = np.arange(4.0)
    for data in (list(range(4)), torch.arange(4), numbers, DataLoader(range(4), batch_size=1)):
        (first, *rest) = list(training.batches(data, 3, shuffle=False))
        assert first.tolist() == [0, 1, 2]
        assert rest[0].tolist() == [3]
    ((column, names),) = training.batches((numbers, ["a", "b", "c", "d"]), 4, shuffle=False)
    assert (column.tolist(), names) == ([0.0, 1.0, 2.0, 3.0], ("a", "b", "c", "d"))
    assert list(training.batches([], 2)) == []


def test_an_iterable_is_read_in_its_order(alone: None) -> None:
    class Letters(IterableDataset[int]):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter(range(10 * self.epoch, 10 * self.epoch + 5))

    def joined(samples: list[int]) -> str:
        return "+".join(map(str, samples))

    training = hvd.elastic.Training()
    for epoch in training.epochs(2):
        seen = [batch.tolist() for batch in training.batches(Letters(), 2)]
        assert seen == [[10 * epoch + i for i in each] for each in ([0, 1], [2, 3], [4])]
        loader = DataLoader(Letters(), batch_size=3, collate_fn=joined)
        first = [f"{10 * epoch + i}" for i in range(5)]
        assert list(training.batches(loader)) == ["+".join(first[:3]), "+".join(first[3:])]
        assert list(training.batches(set(), 2)) == []


def test_a_loop_inside_of_another_one_is_an_error(alone: None) -> None:
    training = hvd.elastic.Training()
    outer = training.batches(range(4), 2)
    next(outer)
    assert len(list(training.batches(range(4), 2))) == 2
    with pytest.raises(UsageError, match="inside of a loop"):
        next(outer)


def test_epochs_inside_of_epochs_are_an_error(alone: None) -> None:
    training = hvd.elastic.Training()
    for _ in training.epochs(2):
        with pytest.raises(UsageError, match=r"epochs\(\) inside of a loop over other epochs"):
            next(training.epochs(2))
        break
    # The loop was left; further epochs follow, also one loop after the other.
    assert [list(training.epochs(number)) for number in (2, 4)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("names", [("a", "a"), ("loop 1", None), (None, "loop 0")])
def test_a_name_is_that_of_one_loop_of_an_epoch(alone: None, names: tuple[Any, Any]) -> None:
    training = hvd.elastic.Training()
    for epoch in training.epochs(2):
        for name in ("a", "b") if epoch == 0 else names[:1]:
            assert len(list(training.batches(range(4), 2, name=name))) == 2
    with pytest.raises(UsageError, match="a second time in epoch 1"):
        next(training.batches(range(4), 2, name=names[1]))


def test_wrong_arguments_say_so(alone: None) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(())

    with pytest.raises(UsageError, match="negative"):
        hvd.elastic.Training(commit_every_s=-1)
    _, optimizer = new_model()
    with pytest.raises(UsageError, match="optimizer averages no gradients"):
        hvd.elastic.Training(optimizer=optimizer)
    training = hvd.elastic.Training()
    for wrong, why in (
        (iter([1]), "an iterator can be read once only"),
        (object(), "a length and an index, or an iterator"),
        (DataLoader(Stream(), num_workers=1), "each worker would read all samples"),
    ):
        with pytest.raises(UsageError, match=why):
            next(training.batches(wrong, 2))
    with pytest.raises(UsageError, match="in the order that they have"):
        next(training.batches(Stream(), 2, shuffle=True))
    with pytest.raises(UsageError, match="batch_size=None"):
        next(training.batches([1, 2]))
    with pytest.raises(UsageError, match="of \\[2, 1\\] samples"):
        next(training.batches(([1, 2], [1]), 2))


def test_a_weight_of_the_user_is_refused(alone: None) -> None:
    model = torch.nn.Linear(1, 1)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    weighted = hvd.DistributedOptimizer(plain, model.named_parameters(), weight=2.0)
    with pytest.raises(UsageError, match=r"optimizer has a weight of its own.*Training weighs"):
        hvd.elastic.Training(model=model, optimizer=weighted)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    hvd.elastic.Training(model=model, optimizer=optimizer)
    with pytest.raises(UsageError, match=r"set_weight\(3\).*Training weighs"):
        optimizer.set_weight(3)
    ReducingOptimizer.set_weight(optimizer, 1)  # as before a short batch
    training = hvd.elastic.Training(model=model, optimizer=optimizer)
    next(training.batches([1.0, 2.0], batch_size=1))
    assert not optimizer.has_weight
