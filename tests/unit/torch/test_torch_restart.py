"""Jobs with PyTorch that go on from the commits of an earlier one; ranks are threads."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

import horovod.torch as hvd
from horovod._train.elastic.checkpoint import file
from horovod._train.elastic.checkpoint.data import NoDataError, Packed
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

LENGTH, BATCH_SIZE, EPOCHS = 24, 2, 3


class Crash(Exception):
    """Of all ranks."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOROVOD_CHECKPOINT_DIR", str(tmp_path))
    return tmp_path


class Counts(torch.nn.Module):
    """Counts how often each sample was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.times = torch.nn.Parameter(torch.zeros(LENGTH))
        self.norm = torch.nn.BatchNorm1d(1)  # has buffers, and a version


def count(crashes_at: tuple[int, int] | None) -> tuple[list[float], list[tuple[int, int]]]:
    """Trains; returns how often each sample counts, and the steps that were taken here."""
    hvd.init()
    model = Counts()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
    training = hvd.elastic.Training(model=model, optimizer=optimizer, commit_every_s=0)
    values = training.track(losses=[])
    taken = []
    try:
        for epoch in training.epochs(EPOCHS):
            for indices in training.batches(range(LENGTH), BATCH_SIZE):
                step = len(values.losses)
                taken.append((epoch, step))
                optimizer.zero_grad()
                model.times[indices].sum().neg().mul(float(training.samples > 0)).backward()
                optimizer.step()
                if (epoch, step) == crashes_at:
                    raise Crash
                values.losses.append(0.5)
            values.losses.clear()
    finally:
        hvd.shutdown()
    return model.times.tolist(), taken


def test_the_simple_way_counts_each_sample_once_over_two_jobs() -> None:
    with pytest.raises(Crash):
        run_ranks(2, count, (1, 3))
    results = run_ranks(3, count, None)
    for times, taken in results:
        assert times == [EPOCHS] * LENGTH
        # A commit after each step: of the second epoch 12 samples are left, for 2 steps of 3 ranks.
        assert taken == [(1, 3), (1, 4), *((2, step) for step in range(4))]


@pytest.mark.parametrize("crash", [(0, 0), (0, 5), (1, 0), (2, 5)])
def test_the_place_of_the_crash_does_not_matter(crash: tuple[int, int]) -> None:
    with pytest.raises(Crash):
        run_ranks(2, count, crash)
    for times, taken in run_ranks(2, count, None):
        assert times == [EPOCHS] * LENGTH
        assert taken[0] == crash


def count_with_a_sampler(crashes_at: tuple[int, int] | None) -> list[float]:
    """The same with a state, a sampler and a function."""
    hvd.init()
    model = Counts()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
    sampler = hvd.elastic.ElasticSampler(range(LENGTH))
    loader = DataLoader(torch.arange(LENGTH), BATCH_SIZE, sampler=sampler)

    @hvd.elastic.run
    def epochs(state: Any) -> None:
        while state.epoch < EPOCHS:
            for step, indices in enumerate(loader):
                if (state.epoch, step) == crashes_at:
                    raise Crash
                optimizer.zero_grad()
                model.times[indices].sum().neg().backward()
                optimizer.step()
                state.sampler.record_batch(step, BATCH_SIZE)
                if step % 2:
                    state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()

    try:
        epochs(hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0))
    finally:
        hvd.shutdown()
    return model.times.tolist()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_sampler_counts_each_sample_once_over_two_jobs(ranks: int) -> None:
    with pytest.raises(Crash):
        run_ranks(2, count_with_a_sampler, (1, 3))
    assert run_ranks(ranks, count_with_a_sampler, None) == [[EPOCHS] * LENGTH] * ranks


def train(crashes: bool, kind: type[torch.optim.Optimizer]) -> list[Any]:
    """Takes ten steps; returns all that was trained."""
    hvd.init()
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    torch.nn.init.constant_(model[0].weight, 0.5)
    torch.nn.init.zeros_(model[0].bias)
    optimizer = kind(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 7], 0.5)
    recent = torch.zeros(2, dtype=torch.bfloat16)

    @hvd.elastic.run
    def steps(state: Any) -> None:
        while state.step < 10:
            if crashes and state.step == 6:
                raise Crash
            generator = torch.Generator().manual_seed(state.step)
            state.optimizer.zero_grad()
            state.model(torch.randn(4, 3, generator=generator)).square().sum().backward()
            state.optimizer.step()
            state.scheduler.step()
            state.recent += 1
            state.step += 1
            if state.step % 2 == 0:
                state.commit()

    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, recent=recent, step=0)
    try:
        steps(state)
    finally:
        hvd.shutdown()
    moments = [list(each.values()) for each in optimizer.state_dict()["state"].values()]
    weights = [value.tolist() for value in model.state_dict().values()]
    return [weights, str(moments), scheduler.get_last_lr(), str(state.recent)]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_two_jobs_train_as_one(
    kind: type[torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Crash):
        run_ranks(2, train, True, kind)
    (found, _) = run_ranks(2, train, False, kind)
    monkeypatch.delenv("HOROVOD_CHECKPOINT_DIR")
    (wanted, _) = run_ranks(2, train, False, kind)
    assert found == wanted


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor(3),
        torch.zeros(0, 2),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.ones(2, requires_grad=True),
    ],
    ids=str,
)
def test_tensors_are_read_as_they_were(tensor: torch.Tensor) -> None:
    packed = Packed()
    values = {"plain": {"value": packed.pack([tensor])}}
    stream = io.BytesIO()
    file.write(stream, values, packed.buffers)
    (found,) = file.read(io.BytesIO(stream.getvalue()), stream.tell())["plain"]["value"]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found, tensor)
    assert found.requires_grad == tensor.requires_grad


def test_tensors_without_plain_memory_are_refused() -> None:
    with pytest.raises(NoDataError, match=r"torch\.Tensor"):
        Packed().pack(torch.eye(2).to_sparse())


@pytest.mark.parametrize(
    ("dtype", "shape", "num_bytes"),
    [
        ("float32", [2**31], 0),  # 8 GiB of whatever was in memory
        ("float32", [2**31], 4),
        ("float32", [3], 8),
        ("float32", [-1], 4),
        ("float64", [1], 4),
        ("int8", [], 0),
        ("int8", [0.5], 0),
    ],
)
def test_a_tensor_that_does_not_fit_its_bytes_is_refused(
    dtype: str, shape: list[int], num_bytes: int
) -> None:
    stream = io.BytesIO()
    packed = {"torch": [0, [dtype, shape, "cpu", False]]}
    file.write(stream, {"plain": {"weights": packed}}, [bytes(num_bytes)])
    stream.seek(0)
    with pytest.raises(file.UnreadableError, match="it holds an array of the shape"):
        file.read(stream, len(stream.getvalue()))
