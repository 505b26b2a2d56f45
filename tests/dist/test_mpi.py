"""Jobs whose data MPI moves: how they begin, end and fail."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mpi_launcher import find_mpi, mpirun, needs_mpi

if TYPE_CHECKING:
    import subprocess

pytestmark = needs_mpi

_RANK = Path(__file__).parent / "mpi_faulty_rank.py"
PROMPT_S = 15.0  # otherwise MPI waits for ever


def run_rank(
    size: int, fault: str, directory: Path, **env: str
) -> subprocess.CompletedProcess[str]:
    records = {"RECORDS": str(directory)}
    return mpirun(size, [sys.executable, str(_RANK), fault], directory, **records, **env)


def lines_of(directory: Path, word: str) -> list[str]:
    """What the ranks said that begins with a word."""
    texts = (path.read_text() for path in directory.glob("*.txt"))
    return [line for text in texts for line in text.split("@") if line.startswith(word)]


def test_a_killed_rank_is_named_at_once_though_mpi_says_nothing(tmp_path: Path) -> None:
    job = run_rank(3, "kill", tmp_path)
    errors = sorted(lines_of(tmp_path, "error"))
    assert [line.split()[1] for line in errors] == ["0", "2"], job.stdout + job.stderr
    for line in errors:
        assert float(line.split()[2]) < PROMPT_S
        assert "PeerLostError" in line
        assert "rank 1 (" in line
        assert "was lost" in line
    again = lines_of(tmp_path, "again")
    assert len(again) == 2
    assert all("start the processes of the job anew" in line for line in again)


def test_a_rank_that_raises_ends_the_others_with_its_reason(tmp_path: Path) -> None:
    job = run_rank(3, "raise", tmp_path)
    errors = sorted(lines_of(tmp_path, "error"))
    assert [line.split()[1] for line in errors] == ["0", "2"], job.stdout + job.stderr
    assert all("this rank gives up" in line for line in errors)
    assert "Finalize" not in job.stderr


def test_jobs_may_follow_one_another_in_the_same_processes(tmp_path: Path) -> None:
    job = run_rank(2, "reinit", tmp_path)
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("sum 2.0") == 6
    assert job.stderr == ""


@pytest.mark.parametrize("disable", ["0", "1"])
def test_mpi_is_initialized_with_the_threads_that_the_program_needs(
    disable: str, tmp_path: Path
) -> None:
    job = run_rank(2, "none", tmp_path, HOROVOD_MPI_THREADS_DISABLE=disable)
    assert job.returncode == 0, job.stderr
    threads = lines_of(tmp_path, "threads")
    assert len(threads) == 2, job.stdout + job.stderr
    if disable == "0":
        assert all("threads True" in line for line in threads)


def test_ranks_that_mpirun_did_not_start_are_told_so(tmp_path: Path) -> None:
    job = run_rank(2, "reinit", tmp_path, HOROVOD_SIZE="4", HOROVOD_RANK="0")
    starts = lines_of(tmp_path, "start")
    assert len(starts) == 2, job.stdout + job.stderr
    assert all("the job has 4 ranks, but MPI_COMM_WORLD has 2" in line for line in starts)
    mpi = find_mpi()
    assert mpi is not None
    assert all("libmpi_abi" in line for line in starts)


def test_a_rank_without_the_setting_ends_the_start_of_the_others(tmp_path: Path) -> None:
    script = (
        "import os, runpy, sys; "
        "os.environ['PMI_RANK'] == '1' and os.environ.update(HOROVOD_CPU_OPERATIONS='native'); "
        f"sys.argv[1:] = ['raise']; runpy.run_path({str(_RANK)!r}, run_name='__main__')"
    )
    job = mpirun(2, [sys.executable, "-c", script], tmp_path, HOROVOD_START_TIMEOUT="3")
    assert "HOROVOD_CPU_OPERATIONS=mpi" in job.stdout, job.stdout + job.stderr
