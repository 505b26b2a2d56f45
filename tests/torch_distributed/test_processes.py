"""The backend between real processes: groups, a shared engine, and failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import process_ranks
import pytest
import torch
from packaging.version import Version

import horovod
from horovod.errors import RankFailedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_groups_of_some_ranks(tmp_path: Path) -> None:
    sums = horovod.run(process_ranks.groups_of_some_ranks, (str(tmp_path),), num_proc=3)
    assert sums == [
        [11.0, 101.0, 1.0, 3.0],
        [11.0, 110.0, 1.0, 3.0, 7.0],
        [110.0, 101.0, 1.0, 3.0, 7.0],
    ]


def test_a_thousand_groups_leave_nothing_behind(tmp_path: Path) -> None:
    assert horovod.run(process_ranks.many_groups, (str(tmp_path),), num_proc=3) == [True] * 3


def test_leaving_a_group_is_an_error_of_those_that_need_the_rank(tmp_path: Path) -> None:
    assert horovod.run(process_ranks.leave_a_group, (str(tmp_path),), num_proc=3) == [True] * 3


def test_one_engine_for_hvd_and_torch_distributed(tmp_path: Path) -> None:
    assert horovod.run(process_ranks.one_engine, (str(tmp_path),), num_proc=3) == [True] * 3


def test_other_devices_have_their_own_backend(tmp_path: Path) -> None:
    assert horovod.run(process_ranks.other_devices, (str(tmp_path),), num_proc=2) == [True] * 2


def test_another_place_than_that_of_the_launcher(tmp_path: Path) -> None:
    assert horovod.run(process_ranks.other_place, (str(tmp_path),), num_proc=2) == [0, 1]


# Seen with 2.7.1: its destructor holds Python's lock and joins a thread that waits for this lock.
@pytest.mark.skipif(
    Version(torch.__version__) < Version("2.13"), reason="the end of a gloo group can wait forever"
)
def test_group_beside_gloo(tmp_path: Path) -> None:
    sums = horovod.run(process_ranks.beside_gloo, (str(tmp_path),), num_proc=3)
    assert sums == [[3.0, 0.0], [3.0, 2.0], [3.0, 2.0]]


@pytest.mark.parametrize(
    "function", [process_ranks.lose_a_rank, process_ranks.lose_a_rank_in_backward]
)
def test_lost_rank_is_named_on_the_others(function: Callable[[str], None], tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match="rank 1"):
        horovod.run(function, (str(tmp_path),), num_proc=3)
    for rank in (0, 2):
        text = (tmp_path / f"error.{rank}").read_text()
        assert "rank 1" in text, text


def test_stall_ends_all_ranks_within_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(RankFailedError):
        horovod.run(process_ranks.stall, (str(tmp_path),), num_proc=2)
    for rank in (0, 1):
        text = (tmp_path / f"error.{rank}").read_text()
        assert "all_reduce 2 of world" in text, text
        assert "process_ranks.py:" in text, text
        assert "Missing ranks:\nrank 1 (" in text, text
        assert "It last submitted torch.world.1 at " in text, text
