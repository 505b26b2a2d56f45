"""Elastic jobs of horovodrun: workers that are killed, hosts that come and go, real processes."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from driven_job import PLACE, discovered, elastic
from launcher import assert_all_gone, horovodrun, python

import horovod
from horovod.runner.elastic.discovery import FixedHosts


def test_a_killed_worker_leaves_the_others_training(tmp_path: Path) -> None:
    with elastic(tmp_path, *["-np", "3", "--min-np", "2", "-H", "localhost:3"]) as job:
        pids = job.trains(3)
        os.kill(pids[1], signal.SIGKILL)
        left = job.trains(2)
        assert left == {0: pids[0], 1: pids[2]}
        job.ends()
    assert "SIGKILL" in job.launcher.stderr


def test_a_stopped_worker_is_killed_and_left_out(tmp_path: Path) -> None:
    words = ["-np", "3", "--min-np", "2", "-H", "localhost:3", "--worker-timeout", "6"]
    with elastic(tmp_path, *words) as job:
        pids = job.trains(3)
        os.kill(pids[1], signal.SIGSTOP)
        assert job.trains(2) == {0: pids[0], 1: pids[2]}
        job.ends()
    assert re.search(
        r"rank 1 \(localhost-1\) on localhost is killed: it has been silent for \d+\.\d s "
        r"\(--worker-timeout\) in generation 0",
        job.launcher.stderr,
    )


def test_a_worker_that_is_stopped_for_less_goes_on(tmp_path: Path) -> None:
    words = ["-np", "2", "--min-np", "1", "-H", "localhost:2", "--worker-timeout", "30"]
    with elastic(tmp_path, *words) as job:
        pids = job.trains(2)
        os.kill(pids[1], signal.SIGSTOP)
        wait_until_stopped(pids[1])
        os.kill(pids[1], signal.SIGCONT)
        job.ends()
    assert "generation 1" not in job.launcher.stderr


def wait_until_stopped(pid: int) -> None:
    stat = Path(f"/proc/{pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "T":
        os.sched_yield()


def test_new_slots_get_workers_and_old_ones_are_given_up(tmp_path: Path) -> None:
    with discovered(tmp_path, "localhost:2", *["-np", "2", "--min-np", "1"]) as job:
        pids = job.trains(2)
        job.hosts("localhost:2", "127.0.0.1:1")
        more = job.trains(3)
        assert [more[0], more[1]] == [pids[0], pids[1]]
        job.hosts("127.0.0.1:1")
        assert job.trains(1) == {0: more[2]}
        job.ends()
    assert len(job.launcher.wait_lines("stdout", r"ends after True with 1")) == 1


def test_a_job_below_its_minimum_waits_for_replacements(tmp_path: Path) -> None:
    with discovered(tmp_path, "localhost:1\n127.0.0.1:1", *["-np", "2"]) as job:
        pids = job.trains(2)
        os.kill(pids[1], signal.SIGKILL)
        job.hosts("localhost:1")
        job.hosts("localhost:2")
        again = job.trains(2, times=2)
        assert again[0] == pids[0]
        job.ends()


def test_the_reset_limit_ends_a_job(tmp_path: Path) -> None:
    words = ["-np", "2", "--min-np", "1", "--reset-limit", "0"]
    with discovered(tmp_path, "localhost:2", *words) as job:
        job.trains(2)
        job.hosts("localhost:1")
        assert job.launcher.wait() == 1
    assert "as often as --reset-limit 0 allows" in job.launcher.stderr


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo a:b", "line 1 of the host discovery script 'echo a:b': cannot read 'a:b'"),
        ("exit 3", "the host discovery script 'exit 3' failed with exit code 3"),
        ("echo a", "gives no number of slots"),
    ],
)
def test_a_script_that_fails_at_first_ends_the_job(script: str, message: str) -> None:
    launcher = horovodrun("-np", "1", "--host-discovery-script", script, "true")
    assert launcher.wait() == 1
    assert message in launcher.stderr


def test_rubbish_later_is_a_warning_and_the_hosts_stay(tmp_path: Path) -> None:
    with discovered(tmp_path, "localhost:2", *["-np", "2"]) as job:
        job.trains(2)
        job.hosts("no host at all")
        job.launcher.wait_lines("stderr", "they stay the same: .* cannot read 'no host at all'")
        job.ends()


@pytest.mark.parametrize(
    ("script", "phase"),
    [
        ("echo asked >&2; sleep 4321", "asked"),
        ("echo asked >&2", "asked"),
        ("echo localhost:2", "generation 0 has"),
    ],
)
def test_ctrl_c_leaves_nothing(tmp_path: Path, script: str, phase: str) -> None:
    words = ["--verbose", "-np", "2", "--host-discovery-script", script]
    with elastic(tmp_path, *words) as job:
        job.launcher.wait_lines("stderr", phase)
        family = job.launcher.descendants()
        job.launcher.process.send_signal(signal.SIGINT)
        assert job.launcher.wait() == 130
        assert_all_gone(family, 20)


def test_workers_that_all_fail_at_once_end_the_job() -> None:
    launcher = horovodrun(
        *["-np", "2", "--min-np", "1", "-H", "localhost:2"], *python("import no_such_module")
    )
    assert launcher.wait() == 1
    assert "No module named 'no_such_module'" in launcher.stderr


def test_a_plain_program_needs_no_elastic_function() -> None:
    launcher = horovodrun(
        *["-np", "2", "--min-np", "1", "-H", "localhost:2"], *python("print('hi')")
    )
    assert launcher.wait() == 0
    assert len(launcher.wait_lines("stdout", "hi", 2)) == 2


def test_files_of_a_rank_are_those_of_all_that_had_it(tmp_path: Path) -> None:
    words = f"-np 2 --output-filename {tmp_path / 'out'}".split()
    with discovered(tmp_path, "localhost:1\n127.0.0.1:1", *words) as job:
        pids = job.trains(2)
        os.kill(pids[1], signal.SIGKILL)
        job.hosts("localhost:2")
        job.trains(2, times=2)
        job.ends()
    lines = (tmp_path / "out" / "rank.1" / "stdout").read_text().splitlines()
    assert len([line for line in lines if PLACE.match(line)]) == 2


def test_the_end_of_the_launcher_is_that_of_its_workers(tmp_path: Path) -> None:
    with elastic(tmp_path, *["-np", "2", "--min-np", "1", "-H", "localhost:2"]) as job:
        job.trains(2)
        family = job.launcher.descendants()
        job.launcher.process.kill()
        assert_all_gone(family, 10)
        job.launcher.wait_lines(
            "stderr", "the launcher has died; its agent ends the 2 ranks on this host"
        )


def test_a_worker_that_ends_with_0_in_the_middle_is_lost(tmp_path: Path) -> None:
    quits = tmp_path / "quits"
    words = ["-np", "3", "--min-np", "2", "-H", "localhost:3"]
    with elastic(tmp_path, *words, QUITS=str(quits)) as job:
        pids = job.trains(3)
        quits.touch()
        job.launcher.wait_lines("stderr", r"generation 1, 3 -> 2 ranks")
        assert job.trains(2) == {0: pids[0], 1: pids[2]}
        job.ends()
    assert re.search(
        r"horovodrun: rank 1 \(localhost-1\) on localhost ended with code 0 while rank 0 "
        r"\(localhost-0\) on localhost, rank 2 \(localhost-2\) on localhost still train",
        job.launcher.stderr,
    )


def test_a_job_fails_that_is_too_small_without_one_that_ended_with_0(tmp_path: Path) -> None:
    (tmp_path / "quits").touch()
    words = ["-np", "2", "--min-np", "2", "-H", "localhost:2"]
    with elastic(tmp_path, *words, QUITS=str(tmp_path / "quits")) as job:
        assert job.launcher.wait() == 1
    text = r"rank 1 \(localhost-1\) on localhost ended with code 0 while rank 0 \(localhost-0\)"
    assert re.search(text, job.launcher.stderr)
    assert "1 of the 2 workers that the job needs are present" in job.launcher.stderr


def test_a_newcomer_that_comes_after_the_last_check_does_not_hold_up_the_end(
    tmp_path: Path,
) -> None:
    last = tmp_path / "last"
    words = ["-np", "2", "--min-np", "1"]
    with discovered(tmp_path, "localhost:2", *words, LAST_STEP=str(last)) as job:
        job.trains(2)
        last.touch()
        job.launcher.wait_lines("stdout", "is in its last step", 2)
        job.hosts("localhost:3")
        job.launcher.wait_lines("stderr", "generation 1, 2 -> 3 ranks")
        began_s = time.monotonic()
        job.ends()
        assert time.monotonic() - began_s < 15.0
    assert "change" not in job.launcher.stderr


def place_at_the_end() -> tuple[int, int]:
    """For horovod.run; travels by value."""
    from horovod._rank import context

    context.init()
    group = context.global_group()
    return group.rank, group.size


def test_horovod_run_returns_the_results_of_the_fewest_ranks() -> None:
    found = horovod.run(
        place_at_the_end, num_proc=2, min_num_proc=1, max_num_proc=2, hosts="localhost:2"
    )
    assert found == [(0, 2)]
    hosts = FixedHosts({"localhost": 1, "127.0.0.1": 1})
    found = horovod.run(place_at_the_end, num_proc=2, host_discovery=hosts)
    assert found == [(0, 2), (1, 2)]
