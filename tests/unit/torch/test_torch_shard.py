"""hvd.shard: weights, short steps, refusals, and its place in elastic training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import horovod.torch as hvd
from horovod.errors import HorovodInternalError, UsageError
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Shards:
    """A stream in shards."""

    def __init__(self, *shards: list[int]) -> None:
        self.shards = shards
        self.num_shards = len(shards)

    def shard(self, num_shards: int, index: int) -> list[int]:
        return self.shards[index]

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("nobody reads the whole")


class OfRank(IterableDataset[int]):
    """A stream that divides itself, as it should not."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(hvd.rank(), 20, hvd.size()))


def ranks(size: int, body: Callable[[], Any]) -> list[Any]:
    def initialized() -> Any:
        hvd.init()
        return body()

    return run_ranks(size, initialized)


def trained(size: int, batch_size: int, *, streams: bool, by_optimizer: bool) -> list[float]:
    """Return weights after an epoch over 11 samples, each with an input of its own."""

    def body() -> list[float]:
        data: Any = Shards(list(range(6)), list(range(6, 11))) if streams else range(11)
        shard = hvd.shard(data, batch_size, shuffle=False)
        model = torch.nn.Linear(2, 1, bias=False).double()
        torch.nn.init.ones_(model.weight)
        weight = (lambda: shard.samples) if by_optimizer else None
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01),
            model.named_parameters(),
            weight=weight,
        )
        for batch in shard:
            inputs = torch.stack([batch.double(), batch.double() ** 0.5], 1)
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            (loss if by_optimizer else loss * shard.weight).backward()
            optimizer.step()
        return [float(each) for each in model.weight.detach().flatten()]

    results = ranks(size, body)
    assert results == [results[0]] * size
    return list(results[0])


@pytest.mark.parametrize("by_optimizer", [False, True])
def test_weights_make_the_gradient_of_the_joint_batch(by_optimizer: bool) -> None:
    joint = trained(1, 6, streams=False, by_optimizer=by_optimizer)
    # 11 samples in steps of 6: the second one has 2, 2 and 1.
    assert trained(3, 2, streams=False, by_optimizer=by_optimizer) == pytest.approx(joint, 1e-12)
    whole = trained(1, 11, streams=True, by_optimizer=by_optimizer)
    divided = trained(2, 6, streams=True, by_optimizer=by_optimizer)
    assert divided == pytest.approx(whole, 1e-12)


def test_a_rank_that_never_has_a_sample_takes_part_with_one_of_others() -> None:
    def body() -> list[tuple[list[int], int, float]]:
        shard = hvd.shard(Shards([], [7]), batch_size=2)
        return [(batch.tolist(), shard.samples, shard.weight) for batch in shard]

    assert ranks(3, body) == [[([7], 0, 0.0)], [([7], 1, 3.0)], [([7], 0, 0.0)]]


@pytest.mark.parametrize("data", [range(7), Shards([0, 1, 2, 3, 4, 5, 6])], ids=["list", "stream"])
def test_join_ends_the_loop_of_a_rank_without_samples(data: Any) -> None:
    def body() -> tuple[int, int, float]:
        shard = hvd.shard(data, batch_size=2, shuffle=False, uneven="join")
        total = steps = 0
        for batch in shard:
            total += int(hvd.allreduce(batch.sum(), op=hvd.Sum, name="sum"))
            steps += 1
        hvd.join()
        return steps, total, shard.epoch

    assert ranks(3, body) == [(2, 21, 1), (1, 15, 1), (1, 15, 1)]


@pytest.mark.parametrize(
    "data", [range(7), Shards([0, 1, 2, 3], [4, 5, 6]), DataLoader(range(7), 9, drop_last=True)]
)
def test_drop_leaves_out_a_step_in_which_a_rank_has_fewer(data: Any) -> None:
    def body() -> tuple[list[int], int]:
        uneven: Any = None if isinstance(data, DataLoader) else "drop"
        shard = hvd.shard(data, batch_size=2, uneven=uneven)
        return [len(batch) for batch in shard], shard.epoch

    assert ranks(2, body) == [([2], 1)] * 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_workers_read_ahead_does_not_count(alone: None, num_workers: int) -> None:
    data = TensorDataset(torch.arange(12))
    loader: Any = DataLoader(data, 2, shuffle=True, num_workers=num_workers)
    shard = hvd.shard(loader, seed=3)
    assert len(shard) == 6
    seen: list[int] = []
    for (batch,) in shard:
        seen += batch.tolist()
        if len(seen) == 4:
            break
    assert (len(shard), shard.samples_done) == (4, 4)
    resumed = hvd.shard(loader, seed=3)
    resumed.load_state_dict(json.loads(json.dumps(shard.state_dict())))
    seen += [each for (batch,) in resumed for each in batch.tolist()]
    assert sorted(seen) == list(range(12))
    assert seen == [each for (batch,) in hvd.shard(loader, seed=3) for each in batch.tolist()]
    assert seen != sorted(seen)


def test_break_ends_the_epoch(alone: None) -> None:
    shard = hvd.shard(range(6), batch_size=2)
    begun = []
    for epoch in shard.epochs(3):
        begun.append(epoch)
        for _ in shard:
            break
    assert begun == [0, 1, 2]
    assert (shard.epoch, list(shard.epochs(3))) == (3, [])


def test_one_loop_at_a_time(alone: None) -> None:
    shard = hvd.shard(range(6), batch_size=2)
    first = iter(shard)
    next(first)
    next(iter(shard))
    with pytest.raises(UsageError, match="run one loop at a time"):
        next(first)
    assert shard.samples_done == 4


def test_a_state_of_other_data_or_another_seed_is_refused(alone: None) -> None:
    state = hvd.shard(range(6), batch_size=2).state_dict()
    hvd.shard(range(6), batch_size=3).load_state_dict(state)
    for other in (
        hvd.shard(range(7), batch_size=2),
        hvd.shard(range(6), batch_size=2, seed=1),
        hvd.shard(Shards([1]), batch_size=2),
    ):
        with pytest.raises(UsageError, match="its position means nothing"):
            other.load_state_dict(state)
    stream = hvd.shard(Shards([1, 2]), batch_size=1, shuffle=True)
    with pytest.raises(UsageError, match="another seed, shuffle or buffer"):
        hvd.shard(Shards([1, 2]), 1, shuffle=True, buffer=2).load_state_dict(stream.state_dict())


@pytest.mark.parametrize("what", ["data", "batch_size", "seed", "position", "sampler"])
def test_ranks_that_differ_are_told_before_the_first_step(what: str) -> None:
    def body() -> None:
        odd = hvd.rank() == 1
        data: Any = range(8 + (what == "data" and odd))
        if what == "sampler":
            # Each has a seed of its own.
            own = torch.Generator().manual_seed(hvd.rank())
            data = DataLoader(data, 2, sampler=RandomSampler(data, generator=own))
        seed = int(what == "seed" and odd)
        shard = hvd.shard(data, batch_size=2 + (what == "batch_size" and odd), seed=seed)
        if what == "position" and odd:
            shard.load_state_dict({**shard.state_dict(), "consumed": 4})
        word = "order" if what == "sampler" else what
        with pytest.raises(UsageError, match=f"the ranks differ in .*{word}"):
            iter(shard)

    ranks(2, body)


def test_a_sampler_that_draws_another_order_in_a_resumed_job_is_told(alone: None) -> None:
    def shard_of(seed: int) -> Any:
        own = torch.Generator().manual_seed(seed)
        return hvd.shard(DataLoader(range(8), 2, shuffle=True, generator=own))

    shard = shard_of(1)
    next(iter(shard))
    same = shard_of(1)
    same.load_state_dict(shard.state_dict())
    assert len(list(same)) == 3
    other = shard_of(2)
    other.load_state_dict(shard.state_dict())
    with pytest.raises(UsageError, match="draws another order"):
        iter(other)


def test_a_stream_that_divides_itself_by_rank_is_named(caplog: pytest.LogCaptureFixture) -> None:
    ranks(2, lambda: list(hvd.shard(OfRank(), batch_size=2)))
    (text,) = [each.getMessage() for each in caplog.records]
    assert "rank 0 and rank 1 read the same part" in text


def test_ranks_that_find_different_numbers_in_a_part_are_told() -> None:
    def body() -> None:
        data = [0] * (9 + hvd.rank())

        class Stream(IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                return iter(data)

        with pytest.raises(UsageError, match=r"rank 0: 1, rank 1: 2\)"):
            list(hvd.shard(Stream(), batch_size=2))

    ranks(2, body)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (iter([1]), {"batch_size": 1}, "read once only"),
        (5, {"batch_size": 1}, "length and an index"),
        ("path", {"batch_size": 1}, "the data set that it names"),
        ([1], {}, "how many samples a rank has"),
        ([1], {"batch_size": 1, "uneven": "pad"}, "not weight, join or drop"),
        ([1], {"batch_size": 1, "buffer": 0}, "at least 1"),
        ([1], {"batch_size": 2.0}, r"batch_size=2\.0 must be an integer"),
        ([1], {"batch_size": 1, "seed": "1"}, "seed='1' must be an integer"),
        ((np.arange(3), np.arange(4)), {"batch_size": 1}, "one length"),
        (DataLoader([1], 1), {"collate": list}, "leave collate out"),
        (DataLoader([1], 1, drop_last=True), {"uneven": "join"}, "choose one"),
        (DataLoader([1], batch_size=None), {"batch_size": 1}, "batch_size=None"),
        (DataLoader([1, 2], 1, sampler=[1]), {"shuffle": True}, "leave shuffle out"),
        (DataLoader(OfRank(), 1, num_workers=2), {}, "leave num_workers out"),
    ],
)
def test_what_cannot_be_honored_is_refused(
    data: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        hvd.shard(data, **options)


def test_integers_of_numpy_are_integers(alone: None) -> None:
    states = []
    for integer in (int, np.int64):
        shard = hvd.shard(range(4), batch_size=integer(2), seed=integer(3))
        states.append([[batch.tolist() for batch in shard], shard.state_dict()])
    assert states[0] == states[1]


class Shorter:
    """A sampler that yields less than it says."""

    def __init__(self, length: int | None) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter([2, 0, 1])

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError
        return self.length


def test_the_length_of_a_sampler_is_that_of_its_order(alone: None) -> None:
    def loader(length: int | None) -> Any:
        return DataLoader(range(3), 3, sampler=Shorter(length))

    assert [batch.tolist() for batch in hvd.shard(loader(3))] == [[2, 0, 1]]
    with pytest.raises(UsageError, match="yields 3 indices in epoch 0, but its length was 5"):
        iter(hvd.shard(loader(5)))
    with pytest.raises(UsageError, match="a Shorter: the sampler needs a length"):
        hvd.shard(loader(None))


def test_arrays_and_samples_become_tensors(alone: None) -> None:
    (batch,) = hvd.shard({"x": np.arange(3), "y": [1, 2, 3]}, batch_size=3, shuffle=False)
    assert batch["x"].tolist() == [0, 1, 2]
    assert batch["y"].tolist() == [1, 2, 3]
    (batch,) = hvd.shard([(1, "a"), (2, "b")], batch_size=2, shuffle=False)
    assert batch[0].tolist() == [1, 2]
    assert batch[1] in (["a", "b"], ("a", "b"))


def test_elastic_training_goes_back_to_the_samples_of_the_last_commit(alone: None) -> None:
    shard = hvd.shard(Shards([0, 1, 2, 3], [4, 5, 6, 7]), batch_size=2)
    state = hvd.elastic.TorchState(shard=shard, seen=[], losses=0)

    @hvd.elastic.run
    def train(state: Any) -> list[int]:
        for batch in shard:
            state.seen.extend(batch.tolist())
            if len(state.seen) == 4:
                state.commit()
            if len(state.seen) == 6 and not lost:
                lost.append(True)
                raise HorovodInternalError("a rank was lost")
        return list(state.seen)

    lost: list[bool] = []
    assert train(state) == list(range(8))


def test_elastic_training_refuses_a_shard_that_would_not_go_back(alone: None) -> None:
    shard = hvd.shard(range(4), batch_size=2)

    @hvd.elastic.run
    def train(state: Any) -> int:
        with pytest.raises(UsageError, match="is not in the state"):
            iter(shard)
        # One that belongs to this round, for example for validation, does not have to.
        return len(list(hvd.shard(range(4), batch_size=2)))

    assert train(hvd.elastic.TorchState(epoch=0)) == 2


def test_loops_of_training_refuse_a_shard(alone: None) -> None:
    shard = hvd.shard(range(4), batch_size=2)
    training = hvd.elastic.Training(shard=shard)
    for _ in training.epochs(1):
        with pytest.raises(UsageError, match="give the data set itself"):
            iter(shard)
        with pytest.raises(UsageError, match="give the data set itself"):
            list(training.batches(shard))
