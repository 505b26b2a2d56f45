"""ElasticBatchSampler, alone and with ranks that are threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thread_ranks import run_ranks
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd
from horovod.errors import HostsUpdatedInterrupt, UsageError

SAMPLES = list(range(10))


def test_each_sample_is_in_one_batch_of_one_rank() -> None:
    def body(_: int) -> tuple[list[list[int]], int]:
        sampler = hvd.elastic.ElasticBatchSampler(SAMPLES, batch_size=2)
        return list(sampler), len(sampler)

    ranks = run_ranks(2, body)
    batches = [batches for batches, _ in ranks]
    assert [length for _, length in ranks] == [3, 3]
    assert [[len(batch) for batch in of_rank] for of_rank in batches] == [[2, 2, 1]] * 2
    seen = [index for of_rank in batches for batch in of_rank for index in batch]
    assert sorted(seen) == SAMPLES
    assert seen != SAMPLES


def test_a_rank_for_which_nothing_is_left_repeats_samples() -> None:
    def body(_: int) -> list[list[int]]:
        return list(hvd.elastic.ElasticBatchSampler(range(5), batch_size=2, shuffle=False))

    assert run_ranks(2, body) == [[[0, 2], [4]], [[1, 3], [4]]]


def test_an_uneven_last_step_may_be_left_out() -> None:
    def body(_: int) -> tuple[list[list[int]], int]:
        sampler = hvd.elastic.ElasticBatchSampler(
            SAMPLES, batch_size=2, shuffle=False, drop_last=True
        )
        return list(sampler), len(sampler)

    assert run_ranks(2, body) == [([[0, 2], [4, 6]], 2), ([[1, 3], [5, 7]], 2)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_loader_reads_ahead_does_not_count(alone: None, num_workers: int) -> None:
    data = TensorDataset(torch.arange(8))
    sampler = hvd.elastic.ElasticBatchSampler(data, batch_size=2, shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=num_workers)
    for (batch,) in loader:
        sampler.record_batch()
        if batch.tolist() == [2, 3]:
            state.commit()
        if batch.tolist() == [4, 5]:
            break
    assert (sampler.processed_num, len(sampler), sampler.samples_done) == (6, 1, 6)
    state.restore()
    assert [batch.tolist() for (batch,) in loader] == [[4, 5], [6, 7]]
    sampler.set_epoch(1)
    assert (sampler.epoch, sampler.processed_num, len(sampler)) == (1, 0, 4)
    assert sampler.samples_done == 8


def test_each_epoch_has_an_order_of_its_own_if_wanted(alone: None) -> None:
    shuffled = hvd.elastic.ElasticBatchSampler(range(100), batch_size=100)
    first = next(iter(shuffled))
    shuffled.set_epoch(1)
    second = next(iter(shuffled))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(100))
    assert first == next(iter(hvd.elastic.ElasticBatchSampler(range(100), batch_size=100)))
    assert first != next(iter(hvd.elastic.ElasticBatchSampler(range(100), 100, seed=7)))


@pytest.mark.parametrize("skip_sync", [False, True])
def test_a_change_divides_the_rest(skip_sync: bool) -> None:
    def body(_: int) -> list[list[int]]:
        sampler = hvd.elastic.ElasticBatchSampler(SAMPLES, batch_size=2, shuffle=False)
        state = hvd.elastic.TorchState(sampler=sampler)

        @hvd.elastic.run
        def train(state: Any) -> list[list[int]]:
            if state.sampler.processed_num == 0:
                state.sampler._size = 3  # as if a third one had been there
                state.sampler.record_batch()
                raise HostsUpdatedInterrupt(skip_sync)
            return list(state.sampler)

        return train(state)

    assert run_ranks(2, body) == [[[6, 8]], [[7, 9]]]


def test_the_iterator_has_the_state_that_loaders_keep(alone: None) -> None:
    sampler = hvd.elastic.ElasticBatchSampler(SAMPLES, batch_size=2, shuffle=False)
    batches: Any = iter(sampler)
    next(batches)
    next(batches)
    assert sampler.processed_num == 0
    again: Any = iter(sampler)
    again.load_state_dict(batches.state_dict())
    assert list(again) == [[4, 5], [6, 7], [8, 9]]


# torchdata 0.11 tells PyTorch that it is used, in a way that PyTorch 2.13 no longer wants.
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_goes_on_where_it_was(alone: None, num_workers: int) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    data = TensorDataset(torch.arange(12))

    def loader_of() -> tuple[Any, Any]:
        sampler = hvd.elastic.ElasticBatchSampler(data, batch_size=2, shuffle=False)
        loader = loaders.StatefulDataLoader(data, batch_sampler=sampler, num_workers=num_workers)
        return sampler, loader

    _, loader = loader_of()
    state = hvd.elastic.TorchState(loader=loader)
    seen = []
    for (batch,) in loader:
        seen.append(batch.tolist())
        if len(seen) == 2:
            state.commit()
        if len(seen) == 4:
            break
    state.restore()
    again = [batch.tolist() for (batch,) in loader]
    assert seen[:2] + again == [[2 * number, 2 * number + 1] for number in range(6)]
    # In another job, of another size.
    _, other = loader_of()
    state.restore()
    other.load_state_dict(loader.state_dict())
    other.batch_sampler.batch_size = 4
    assert [batch.tolist() for (batch,) in other] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_batch_has_samples() -> None:
    with pytest.raises(UsageError, match="batch_size=0"):
        hvd.elastic.ElasticBatchSampler(SAMPLES, batch_size=0)
