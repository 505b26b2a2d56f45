"""A job that has lost all of its workers goes on from its commits in files."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from launcher import horovodrun, launched
from restarted_worker import EPOCHS, LENGTH

if TYPE_CHECKING:
    from launcher import Launcher

DATA = Path(__file__).resolve().parents[1] / "data"
WORKER = str(Path(__file__).with_name("restarted_worker.py"))


def numbers(launcher: Launcher, pattern: str, count: int) -> list[int]:
    found = (re.search(pattern, line) for line in launcher.wait_lines("stdout", pattern, count))
    return [int(match[1]) for match in found if match]


def words(directory: Path, ranks: int) -> list[str]:
    elastic = ["-np", f"{ranks}", "--min-np", "1", "-H", f"localhost:{ranks}"]
    worker = [sys.executable, WORKER, str(directory)]
    return [*elastic, "--checkpoint-dir", str(directory), *worker]


def go_on(directory: Path, ranks: int) -> int:
    """Starts the job again, where each sample counts once; how many were done when it began."""
    job = horovodrun(*words(directory, ranks))
    assert job.process.returncode == 0, job.lines
    (begun,) = set(numbers(job, r"begins with (\d+)", ranks))
    ends = job.wait_lines("stdout", r"ends with", ranks)
    assert all(line.endswith(f"ends with [{EPOCHS}] of {LENGTH}") for line in ends)
    return begun


def test_each_sample_counts_once_though_all_workers_were_killed(tmp_path: Path) -> None:
    with launched(*words(tmp_path, 2), "hold") as first:
        for pid in numbers(first, r"pid (\d+) holds", 2):
            os.kill(pid, signal.SIGKILL)
        assert first.wait() != 0
    # At most up to where the workers were killed: an epoch and 3 steps of 4 samples.
    assert 0 < go_on(tmp_path, 3) <= LENGTH + 12


def test_a_job_that_is_asked_to_end_loses_nothing(tmp_path: Path) -> None:
    with launched(*words(tmp_path, 2), "hold", "rarely") as first:
        first.wait_lines("stdout", "holds", 2)
        first.process.terminate()
        assert first.wait() != 0
    # The step in which it was asked has come to its end.
    assert go_on(tmp_path, 1) == LENGTH + 16


@pytest.mark.parametrize("kept", sorted(DATA.glob("[0-9]*")), ids=lambda path: path.name)
def test_commits_of_earlier_versions_are_continued(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept / "elastic", tmp_path / "commits")
    assert go_on(tmp_path / "commits", 2) == LENGTH + 16
