"""env:// of init_process_group in all kinds of jobs, with gloo and with our engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from launcher import horovodrun
from test_foreign_launchers import MPICH, needs_mpich, needs_open_mpi, open_mpi, run
from test_nodes import nodes

pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from collections.abc import Iterable

RANK = [sys.executable, str(Path(__file__).with_name("env_rank.py"))]
HOROVODRUN = [sys.executable, "-m", "horovod.runner.cli"]
FIRST = ("first", "gloo", "horovod")
ALONE_ON_TWO_NODES = ["rank 0/2 local 0/1", "rank 1/2 local 0/1"]
TWO_ON_A_HOST = ["rank 0/2 local 0/2", "rank 1/2 local 1/2"]


def groups_in(lines: Iterable[str]) -> list[str]:
    """What the ranks said of their groups, sorted; the launcher may put its own words before."""
    return sorted(line[line.index("rank ") :] for line in lines if " local " in line)


def expected(places: Iterable[str], backends: Iterable[str]) -> list[str]:
    return sorted(f"{place} {backend} 3" for place in places for backend in backends)


@pytest.mark.parametrize("words", [("never", "horovod"), FIRST], ids=lambda words: words[0])
def test_joined_nodes(words: tuple[str, ...]) -> None:
    with nodes([*RANK, *words], 2) as launchers:
        assert [launcher.wait() for launcher in launchers] == [0, 0], launchers[0].stderr
        lines = [line for launcher in launchers for line in launcher.lines["stdout"]]
    assert groups_in(lines) == expected(ALONE_ON_TWO_NODES, words[1:])


@needs_open_mpi
def test_open_mpi() -> None:
    text = run(open_mpi("--oversubscribe", "-np", "2", *RANK, *FIRST))
    assert groups_in(text.splitlines()) == expected(TWO_ON_A_HOST, FIRST[1:])


@needs_mpich
def test_horovodrun_lets_mpich_start_the_ranks() -> None:
    words = [*HOROVODRUN, "--mpi", "-np", "2", "-H", "localhost:2", *RANK, *FIRST]
    text = run(words, PATH=f"{Path(str(MPICH)).parent}:{os.environ['PATH']}")
    assert groups_in(text.splitlines()) == expected(TWO_ON_A_HOST, FIRST[1:])


@pytest.mark.parametrize(("backend", "lost"), [("gloo", 0), ("horovod", 2)])
def test_an_elastic_job_makes_its_groups_again_after_a_loss(backend: str, lost: int) -> None:
    words = ["-np", "3", "--min-np", "2", "-H", "localhost:3", *RANK, "loses", str(lost), backend]
    job = horovodrun(*words, OMP_NUM_THREADS="1")
    assert job.wait() == 0, job.stderr
    three = [f"rank {rank}/3 local {rank}/3 {backend} 6" for rank in range(3)]
    two = [f"rank {rank}/2 local {rank}/2 {backend} 3" for rank in range(2)]
    assert groups_in(job.lines["stdout"]) == sorted(three + two)
