"""ElasticSampler, with ranks that are threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from thread_ranks import run_ranks
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd
from horovod.errors import HostsUpdatedInterrupt

SAMPLES = list(range(10))


def test_the_order_and_the_parts_are_those_of_earlier_versions() -> None:
    def body(_: int) -> tuple[list[int], int, int]:
        sampler = hvd.elastic.ElasticSampler(SAMPLES)
        return list(sampler), len(sampler), sampler.total_size

    parts = [[7, 3, 9], [8, 4, 6], [1, 2, 7], [5, 0, 8]]
    assert run_ranks(4, body) == [(part, 3, 12) for part in parts]


def test_batches_are_counted_until_the_next_epoch(alone: None) -> None:
    data = TensorDataset(torch.arange(8))
    sampler = hvd.elastic.ElasticSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=2, sampler=sampler)
    for epoch in range(2):
        for number, (batch,) in enumerate(loader):
            assert batch.tolist() == [2 * number, 2 * number + 1]
            sampler.record_batch(number, 2)
            assert sampler.processed_num == 2 * (number + 1)
        assert len(list(loader)) == 4
        sampler.set_epoch(epoch + 1)
        assert (sampler.epoch, sampler.processed_num) == (epoch + 1, 0)


def test_a_state_keeps_it(alone: None) -> None:
    sampler = hvd.elastic.ElasticSampler(list(range(8)), shuffle=False)
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.record_batch(0, 2)
    sampler.record_batch(1, 2)
    state.commit()
    sampler.record_batch(2, 2)
    sampler.record_batch(3, 2)
    assert sampler.samples_done == 8
    state.restore()
    assert (sampler.processed_num, list(sampler)) == (4, [4, 5, 6, 7])
    assert sampler.samples_done == 4
    sampler.record_batch(0, 2)
    state.commit()
    state.sync()
    assert (sampler.processed_num, list(sampler), len(sampler)) == (6, [6, 7], 2)
    sampler.set_epoch(1)
    assert len(sampler) == 8


@pytest.mark.parametrize("skip_sync", [False, True])
def test_a_change_divides_the_rest_also_without_a_sync(skip_sync: bool) -> None:
    def body(_: int) -> tuple[int, list[int]]:
        sampler = hvd.elastic.ElasticSampler(SAMPLES, shuffle=False)
        sampler.num_replicas = 3  # as if a third one had been there
        state = hvd.elastic.TorchState(sampler=sampler)

        @hvd.elastic.run
        def train(state: Any) -> tuple[int, list[int]]:
            if state.sampler.processed_num == 0:
                state.sampler.num_replicas = 3
                state.sampler.record_batch(0, 2)
                raise HostsUpdatedInterrupt(skip_sync)
            return state.sampler.num_replicas, list(state.sampler)

        return train(state)

    assert run_ranks(2, body) == [(2, [6, 8]), (2, [7, 9])]


def test_scripts_from_before_0_24_run() -> None:
    def body(rank: int) -> tuple[int, list[int], list[int]]:
        sampler = hvd.elastic.ElasticSampler(SAMPLES, shuffle=False)
        indices = sampler.get_indices(0, 2)
        sampler.record_indices(indices)
        assert sampler.processed_indices == set(indices)
        sampler.load_state_dict(sampler.state_dict())
        other = hvd.elastic.ElasticSampler(SAMPLES, shuffle=False)
        other.load_state_dict({"epoch": 0, "processed_indices": {0, 1, 2, 3}})
        assert list(other) == list(sampler)
        return sampler.processed_num, indices, sampler.get_indices(0, 2)

    assert run_ranks(2, body) == [(4, [0, 2], [4, 6]), (4, [1, 3], [5, 7])]
