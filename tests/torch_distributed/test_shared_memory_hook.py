"""The hook of DistributedDataParallel whose buckets are in shared memory."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import hook_ranks
import pytest
import torch
from thread_ranks import ThreadRanks

import horovod
from horovod._native import private_array
from horovod.errors import RankFailedError
from horovod.testing import run_ranks
from horovod.torch.distributed.storage_moves import (
    fix_address,
    move_into,
    move_out,
    shared_array_of,
)
from horovod.torch.tensors import adopt

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("size", [2, 3])
def test_weights_are_those_without_the_hook(size: int, tmp_path: Path) -> None:
    assert horovod.run(hook_ranks.equals, (str(tmp_path),), num_proc=size) == [[]] * size


def test_memory_goes_with_the_last_gradient(tmp_path: Path) -> None:
    assert horovod.run(hook_ranks.lives, (str(tmp_path),), num_proc=2) == [True] * 2


def test_wrong_uses_are_refused(tmp_path: Path) -> None:
    assert horovod.run(hook_ranks.wrong_uses, (str(tmp_path),), num_proc=2) == [True] * 2


def test_groups_of_some_ranks_use_private_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = (str(tmp_path), [1, 2])
    assert horovod.run(hook_ranks.in_private_memory, arguments, num_proc=3) == [True] * 3
    assert capfd.readouterr().err.count("is not that of all ranks, so the buckets") == 1


def test_several_hosts_use_private_memory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = (str(tmp_path), [])
    run = run_ranks(2, hook_ranks.in_private_memory, *arguments, processes=True, hosts=[1, 1])
    assert run == [True] * 2
    assert capfd.readouterr().err.count("the ranks are on several hosts, so the buckets") == 1


def test_buckets_leave_shared_memory_when_a_rank_is_lost(tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match="rank 1"):
        horovod.run(hook_ranks.lose_a_rank, (str(tmp_path),), num_proc=2)
    text = (tmp_path / "error.0").read_text()
    assert "rank 1" in text, text
    assert "(0 bytes are shared)" in text, text


@pytest.mark.parametrize("num_elements", [1, mmap.PAGESIZE // 4, 300_000])
def test_a_storage_moves_with_its_values_and_views(num_elements: int) -> None:
    with ThreadRanks(2) as ranks:

        def move(rank: int) -> None:
            tensor = torch.arange(float(num_elements)) + rank
            view, expected = tensor[num_elements // 2 :], tensor.clone()
            handle = ranks.groups[rank].share_memory(tensor.nbytes, name="memory")
            handle.wait()
            (array,) = handle.results()
            storage = tensor.untyped_storage()
            fix_address(storage)
            of_numpy = tensor.numpy()
            move_into(storage, array)
            assert shared_array_of(storage) is array
            assert torch.equal(tensor, expected)
            adopt(array.part(0, "float32", tensor.shape)).add_(1)
            assert torch.equal(tensor, expected + 1)
            assert (of_numpy == (expected + 1).numpy()).all()
            view.add_(1)
            move_out(storage)
            adopt(array.part(0, "float32", tensor.shape)).zero_()
            assert torch.equal(view, expected[num_elements // 2 :] + 2)
            assert (of_numpy[num_elements // 2 :] == view.numpy()).all()
            assert shared_array_of(storage) is None

        ranks.run(move)


def test_private_arrays_take_no_storage() -> None:
    tensor = torch.arange(100_000.0)
    storage = tensor.untyped_storage()
    fix_address(storage)
    address = storage.data_ptr()
    with pytest.raises(OSError, match=r"cannot map memory|not in shared memory"):
        move_into(storage, private_array(tensor.nbytes))
    assert torch.equal(tensor, torch.arange(100_000.0))
    assert shared_array_of(storage) is None
    assert storage.data_ptr() == address
