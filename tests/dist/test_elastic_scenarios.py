"""Scenarios of elastic jobs of horovodrun whose hosts change. Hosts are names of this machine."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

from driven_job import discovered, elastic
from launcher import assert_all_gone, launched, python

if TYPE_CHECKING:
    from pathlib import Path

GONE_S = 20.0
TWO = "localhost:1\n127.0.0.1:1"


def test_a_spare_host_takes_the_place_of_one_that_leaves(tmp_path: Path) -> None:
    words = ["-np", "2", "--min-np", "1", "--max-np", "2"]
    with discovered(tmp_path, f"{TWO}\n127.0.0.2:1", *words) as job:
        pids = job.trains(2)
        job.hosts("localhost:1", "127.0.0.2:1")
        spare = job.trains(2, times=2)
        assert spare[0] == pids[0] != spare[1] != pids[1]
        # One leaves and another one comes in the same answer.
        job.hosts("127.0.0.2:1", "127.0.0.3:1")
        assert job.trains(2, times=3)[0] == spare[1]
        job.ends()
    assert "0 failures" in job.launcher.stderr


def test_a_host_that_failed_comes_back_when_it_is_needed(tmp_path: Path) -> None:
    words = ["-np", "2", "--min-np", "2", "-H", "localhost:1,127.0.0.1:1"]
    with elastic(tmp_path, *words, "--blacklist-cooldown-range", "1", "1") as job:
        pids = job.trains(2)
        os.kill(pids[1], signal.SIGKILL)
        again = job.trains(2, times=2)
        assert again[0] == pids[0] != again[1] != pids[1]
        job.ends()


def test_slots_that_come_back_do_not_lead(tmp_path: Path) -> None:
    with discovered(tmp_path, TWO, *["-np", "2", "--min-np", "1"]) as job:
        pids = job.trains(2)
        job.hosts("localhost:0", "127.0.0.1:1")
        assert job.trains(1) == {0: pids[1]}
        job.hosts("localhost:2", "127.0.0.1:1")
        assert job.trains(3)[0] == pids[1]
        job.ends()


def test_a_host_that_leaves_is_not_at_fault(tmp_path: Path) -> None:
    with discovered(tmp_path, TWO, *["-np", "2", "--min-np", "1"]) as job:
        pids = job.trains(2)
        job.hosts("localhost:1")
        os.kill(pids[1], signal.SIGKILL)  # before or after the driver hears that it leaves
        assert job.trains(1) == {0: pids[0]}
        job.await_answer()
        job.hosts("localhost:1", "127.0.0.1:1")
        assert job.trains(2, times=2)[0] == pids[0]
        job.ends()


def test_a_change_before_training_is_seen_at_the_first_check(tmp_path: Path) -> None:
    begin = tmp_path / "begin"
    words = ["-np", "1", "--max-np", "2"]
    with discovered(tmp_path, "localhost:1", *words, AWAITED=str(begin)) as job:
        job.launcher.wait_lines("stdout", "loads")
        job.hosts("localhost:1", "127.0.0.1:1")
        job.launcher.wait_lines("stdout", "loads", 2)
        begin.touch()
        job.trains(2)
        job.ends()


def test_a_script_that_hangs_delays_nobody(tmp_path: Path) -> None:
    with discovered(tmp_path, TWO, *["-np", "2", "--min-np", "1"]) as job:
        pids = job.trains(2)
        (tmp_path / "hang").touch()
        job.launcher.wait_descendant("sleep", "4321")
        os.kill(pids[0], signal.SIGKILL)
        assert job.trains(1) == {0: pids[1]}
        family = job.launcher.descendants()
        job.ends()
        assert_all_gone(family, GONE_S)


def test_ctrl_c_while_survivors_wait_leaves_nothing(tmp_path: Path) -> None:
    with discovered(tmp_path, TWO, *["-np", "2"]) as job:
        pids = job.trains(2)
        job.hosts("localhost:1")
        os.kill(pids[1], signal.SIGKILL)
        job.launcher.wait_lines("stderr", "SIGKILL")
        family = job.launcher.descendants()
        job.launcher.process.send_signal(signal.SIGINT)
        assert job.launcher.wait() == 130
        assert_all_gone(family, GONE_S)


RETURNS_FIRST = """
import os, time
from horovod._rank import context
from horovod._train import objects
context.init()
first = objects.broadcast_object(context.global_group(), os.getpid(), 0)
while context.rank() and os.path.exists(f"/proc/{first}"):
    time.sleep(0.01)
print("has returned", flush=True)
"""


def test_rank_0_may_return_first() -> None:
    words = ["-np", "2", "--min-np", "1", "-H", "localhost:2"]
    with launched(*words, *python(RETURNS_FIRST)) as launcher:
        assert launcher.wait() == 0, launcher.lines
    assert len(launcher.wait_lines("stdout", "has returned", 2)) == 2
    assert "generation 1" not in launcher.stderr


def test_each_generation_has_a_timeline_of_its_own(tmp_path: Path) -> None:
    words = ["-np", "2", "--min-np", "1", "-H", "localhost:2"]
    timeline = tmp_path / "timeline.json"
    with elastic(tmp_path, *words, "--timeline-filename", str(timeline)) as job:
        pids = job.trains(2)
        os.kill(pids[0], signal.SIGKILL)  # the rank that writes it
        job.trains(1)
        job.ends()
    for file in (timeline, tmp_path / "timeline.generation-1.json"):
        assert any("elastic.round" in str(event) for event in json.loads(file.read_text())), file
