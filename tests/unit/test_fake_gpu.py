"""The fake NCCL between processes, and what its environment asks for.

The rest of the fakes is tested in ``native/tests``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import fake_gpu
import pytest
from fake_nccl_rank import make_unique_id

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(fake_gpu.__file__).with_name("fake_nccl_rank.py")
DEADLINE_S = 50


class Job:
    """Processes that are ranks of one communicator."""

    def __init__(self, size: int, nccl: str) -> None:
        environment = {**os.environ, **fake_gpu.environment(nccl=nccl)}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(rank), str(size)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(size)
        ]
        unique_id = make_unique_id(fake_gpu.FakeNccl())
        for rank in range(size):
            self.input(rank).write(f"{unique_id}\n")
            self.input(rank).flush()

    def input(self, rank: int) -> IO[str]:
        stream = self.ranks[rank].stdin
        assert stream is not None
        return stream

    def output(self, rank: int) -> IO[str]:
        stream = self.ranks[rank].stdout
        assert stream is not None
        return stream

    def line(self, rank: int) -> str:
        return self.output(rank).readline().strip()

    def rest(self, rank: int) -> list[str]:
        """What the rank says until it ends; its input ends."""
        self.input(rank).close()
        return self.output(rank).read().splitlines()

    def kill(self, rank: int) -> None:
        self.ranks[rank].kill()
        self.ranks[rank].wait(DEADLINE_S)

    def kill_all(self) -> None:
        for rank in range(len(self.ranks)):
            self.kill(rank)


@contextmanager
def job(size: int, nccl: str = "") -> Iterator[Job]:
    made = Job(size, nccl)
    # Whoever still reads what they say then reads its end.
    timer = threading.Timer(DEADLINE_S, made.kill_all)
    timer.start()
    try:
        yield made
    finally:
        timer.cancel()
        timer.join()
        made.kill_all()
        for rank in range(size):
            made.input(rank).close()
            made.output(rank).close()


@pytest.mark.parametrize("size", [1, 3])
def test_processes_reduce(size: int) -> None:
    with job(size) as ranks:
        for rank in range(size):
            assert ranks.line(rank) == "ready"
            assert ranks.line(rank) == str(float(size * (size + 1) // 2))
            assert ranks.rest(rank) == ["ended"]


def test_a_collective_hangs_where_the_environment_says_and_an_abort_ends_it() -> None:
    with job(2, "hang:allreduce:1@1") as ranks:
        assert [ranks.line(rank) for rank in range(2)] == ["ready"] * 2
        for rank in range(2):
            assert ranks.rest(rank) == ["input ended", "ended"]


def test_an_asynchronous_error_where_the_environment_says() -> None:
    with job(2, "async_error:allreduce@1") as ranks:
        assert [ranks.line(rank) for rank in range(2)] == ["ready"] * 2
        assert ranks.line(1) == "error 6"  # before its input ends, which it might see first
        assert ranks.rest(1) == ["ended"]
        assert ranks.rest(0) == ["input ended", "ended"]


def test_the_loss_of_a_process_is_an_error_only_where_it_was_asked_for() -> None:
    for words, expected in (("", "input ended"), (",peers:remote_error", "error 6")):
        with job(2, f"hang:allreduce:1@1{words}") as ranks:
            assert [ranks.line(rank) for rank in range(2)] == ["ready"] * 2
            ranks.kill(1)
            if expected.startswith("error"):
                assert ranks.line(0) == expected
                assert ranks.rest(0) == ["ended"]
            else:
                assert ranks.rest(0) == [expected, "ended"]
