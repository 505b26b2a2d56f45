"""hvd.log in an elastic job whose rank 0 is killed: one run, in one file, whose steps go on."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

from driven_job import Job
from launcher import DEADLINE_S, launched

WORKER = str(Path(__file__).with_name("logged_worker.py"))


def place_of(job: Job, text: str) -> int:
    """Wait until a rank has begun in a generation; return its process."""
    (line, *_) = job.launcher.wait_lines("stdout", f"{text} is")
    found = re.search(r" is (\d+)", line)
    assert found is not None
    return int(found[1])


def await_records(path: Path) -> None:
    """Wait until some more steps have been written."""
    deadline, enough = time.monotonic() + DEADLINE_S, path.stat().st_size + 1000
    while path.stat().st_size < enough:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_newcomer_that_becomes_rank_0_goes_on_with_the_run(tmp_path: Path) -> None:
    hosts, metrics = tmp_path / "hosts", tmp_path / "metrics.jsonl"
    hosts.write_text("localhost:1\n")
    words = ("--host-discovery-script", f"cat {hosts}", "-np", "1", "--min-np", "1")
    command = (sys.executable, WORKER, str(tmp_path / "end"))
    with launched(*words, "--log", f"jsonl:{metrics}", *command) as launcher:
        job = Job(launcher, tmp_path)
        first = place_of(job, "rank 0 of 1")
        job.hosts("localhost:2")
        newcomer = place_of(job, "rank 1 of 2")
        await_records(metrics)
        os.kill(first, signal.SIGKILL)
        job.launcher.wait_lines("stdout", f"rank 0 of 1 is {newcomer}")
        await_records(metrics)
        job.ends()
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert len({line["run"] for line in lines}) == 1
    sizes = [line["values"]["size"] for line in lines]
    changes = [sizes[0], *(b for a, b in itertools.pairwise(sizes) if a != b)]
    assert changes == [1.0, 2.0, 1.0]
    steps = [line["step"] for line in lines]
    # Lost is at most what was on its way in each of the two changes.
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    assert min(gaps) == 1
    assert sum(gap - 1 for gap in gaps) <= 10, gaps
