"""A job that has lost all of its workers goes on from its commits in files."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import horovodrun, launched
from restarted_worker import EPOCHS, LENGTH

if TYPE_CHECKING:
    from launcher import Launcher

WORKER = str(Path(__file__).with_name("restarted_worker.py"))


def numbers(launcher: Launcher, pattern: str, count: int) -> list[int]:
    found = (re.search(pattern, line) for line in launcher.wait_lines("stdout", pattern, count))
    return [int(match[1]) for match in found if match]


def test_each_sample_counts_once_though_all_workers_were_killed(tmp_path: Path) -> None:
    def words(ranks: int) -> list[str]:
        elastic = ["-np", f"{ranks}", "--min-np", "1", "-H", f"localhost:{ranks}"]
        return [*elastic, "--checkpoint-dir", str(tmp_path), sys.executable, WORKER, str(tmp_path)]

    with launched(*words(2), "hold") as first:
        for pid in numbers(first, r"pid (\d+) holds", 2):
            os.kill(pid, signal.SIGKILL)
        assert first.wait() != 0
    # At most up to where the workers were killed: an epoch and 3 steps of 4 samples.
    second = horovodrun(*words(3))
    assert second.process.returncode == 0, second.lines
    begun = numbers(second, r"begins with (\d+)", 3)
    assert len(set(begun)) == 1
    assert 0 < begun[0] <= LENGTH + 12
    ends = second.wait_lines("stdout", r"ends with", 3)
    assert all(line.endswith(f"ends with [{EPOCHS}] of {LENGTH}") for line in ends)
