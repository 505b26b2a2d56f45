"""What older scripts rely on between real processes: life of a job, static sets, late ranks."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from launcher import launched

import horovod
import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _places() -> tuple[int, ...]:
    return (
        hvd.rank(),
        hvd.size(),
        hvd.local_rank(),
        hvd.local_size(),
        hvd.cross_rank(),
        hvd.cross_size(),
    )


def _of_environment() -> tuple[int, ...]:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    return tuple(int(os.environ[f"HOROVOD_{name}"]) for name in names)


def _total(**options: object) -> float:
    return float(hvd.allreduce(torch.ones(1), op=hvd.Sum, **options))  # type: ignore[arg-type]


def _again_and_again() -> None:
    """The job ends and begins; each time everything counts from the start."""
    hvd.init()
    places = _places()
    assert places == _of_environment()
    assert hvd.is_homogeneous()
    alone = hvd.add_process_set([1])
    if hvd.rank() == 1:
        # One rank has done more than the others.
        for _ in range(5):
            _total(process_set=alone)
    hvd.shutdown()
    assert not hvd.is_initialized()
    assert alone.process_set_id is None
    hvd.init()
    assert _places() == places
    assert _total() == 3.0
    assert hvd.add_process_set(alone).process_set_id == 1
    hvd.shutdown()


def _sets_of_init() -> None:
    """Static process sets, written in another order by each rank."""
    turn = hvd_rank_before_init()
    even, pair = hvd.ProcessSet([2, 0]), hvd.ProcessSet([[0, 1], [1, 0], [0, 1]][turn])
    with pytest.raises(ValueError, match="number 2"):
        hvd.init(process_sets=[even, pair, hvd.ProcessSet([0, 2])])
    hvd.init(process_sets=[even, pair])
    assert (hvd.global_process_set.process_set_id, hvd.global_process_set.ranks) == (0, [0, 1, 2])
    assert (even.process_set_id, even.ranks) == (1, [0, 2])
    assert (pair.process_set_id, pair.ranks) == (2, [0, 1])
    for process_set in (even, pair):
        if process_set.included():
            assert process_set.rank() == process_set.ranks.index(hvd.rank())
            assert _total(process_set=process_set) == process_set.size() == 2
    # A second framework's init() finds the same job and the same sets.
    again = hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[again])
    assert again.process_set_id == 1
    with pytest.raises(KeyError):
        hvd.init(process_sets=[hvd.ProcessSet([1])])
    assert _total() == 3.0
    hvd.shutdown()


def hvd_rank_before_init() -> int:
    return int(os.environ["HOROVOD_RANK"])


def _one_leaves() -> None:
    """A rank that shuts down ends the operations of all, and no more than that."""
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        hvd.shutdown()
    else:
        for name in ("pending", "later"):
            # Rank 1, or another one that has left because of it.
            with pytest.raises(hvd.HorovodInternalError, match=r"rank \d .*shut Horovod down"):
                _total(name=name)
        assert hvd.is_initialized()
        assert hvd.size() == 3
        hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init()
    assert _total() == 3.0
    hvd.shutdown()


PARTS: tuple[Callable[[], None], ...] = (
    _again_and_again,
    _sets_of_init,
    _one_leaves,
)


def _all_parts() -> list[str]:
    torch.set_num_threads(1)
    done = []
    for part in PARTS:
        part()
        done.append(part.__name__)
    return done


def test_lives_of_a_job() -> None:
    # All in one job, as starting one takes longer than they do.
    assert horovod.run(_all_parts, num_proc=3) == [[part.__name__ for part in PARTS]] * 3


LATE = """
import os, sys, time, torch
import horovod.torch as hvd

hvd.init()
hvd.barrier()
began = time.monotonic()
while hvd.rank() == 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)  # until the others have given up
for name in ("first", "second"):
    try:
        hvd.allreduce(torch.ones(1), name=name)
    except hvd.HorovodInternalError as error:
        print("failed after", time.monotonic() - began, name, type(error).__name__, flush=True)
hvd.shutdown()
print("left", flush=True)
"""


def test_a_late_rank_fails_too_and_everyone_can_leave(tmp_path: Path) -> None:
    words = [
        *("-np", "3", "--stall-check-warning-time-seconds", "1"),
        *("--stall-check-shutdown-time-seconds", "2"),
    ]
    go = tmp_path / "go"
    with launched(*words, sys.executable, "-c", LATE, str(go)) as launcher:
        launcher.wait_lines("stdout", "failed after .* second", 2)
        go.touch()
        assert launcher.wait() == 0, launcher.stderr
    output = "\n".join(launcher.lines["stdout"])
    failures = re.findall(r"\[(\d)\]<stdout>:failed after ([\d.]+) (\w+) (\w+)", output)
    assert {(rank, name) for rank, _, name, _ in failures} == {
        (str(rank), name) for rank in range(3) for name in ("first", "second")
    }
    assert all(2.0 <= float(at_s) < 20.0 for rank, at_s, _, _ in failures if rank != "1")
    assert output.count(":left") == 3
    assert "Missing ranks:" in launcher.stderr
    assert "allreduce.first" in launcher.stderr
