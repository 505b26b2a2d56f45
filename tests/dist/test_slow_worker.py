"""A rank that makes the others wait is named, with what the job would gain without it."""

from __future__ import annotations

import functools
import io
import os
import re
import sys

import pytest
from launcher import environment

from horovod.runner.output.console import Console
from horovod.runner.placing.hosts import Host, assign
from horovod.runner.placing.plan import JobSettings
from horovod.runner.starting import launch as launching
from horovod.runner.supervision.slow_worker_watch import SlowWorkerWatch

# Steps that sleep instead of computing, so that a busy machine changes little. 3 s in all.
CODE = """
import sys, time
import horovod.wait_report
horovod.wait_report.INTERVAL_S = 0.2
from horovod import context
context.init()
group = context.global_group()
step_s = 0.04 if group.rank == int(sys.argv[1]) else 0.01
for _ in range(75):
    time.sleep(step_s)
    group.barrier().wait()
context.shutdown()
"""


def run(slow_rank: int, monkeypatch: pytest.MonkeyPatch, **env: str) -> str:
    """Runs two ranks; returns what the launcher said."""
    shorter = functools.partial(SlowWorkerWatch, window_s=0.3)
    monkeypatch.setattr(launching, "SlowWorkerWatch", shorter)
    command = (sys.executable, "-c", CODE, str(slow_rank))
    settings = JobSettings(command, os.getcwd(), environment(**env))
    text = io.StringIO()
    with Console(text, text) as console:
        slots = assign([Host("localhost", None)], 2)
        outcome = launching.launch(slots, settings, launching.LaunchOptions(console))
    assert outcome.exit_code == 0, text.getvalue()
    return text.getvalue()


# Rank 0 coordinates the others, whose messages it reads late if it is slow itself.
@pytest.mark.parametrize("slow_rank", [0, 1])
def test_the_slow_rank_is_named_while_the_job_runs_and_at_its_end(
    slow_rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = run(slow_rank, monkeypatch)
    who = f"rank {slow_rank} on localhost"
    found = re.search(rf"{who} makes the others wait: .* would take (\d+) % less time", said)
    assert found, said
    assert 40 <= int(found[1]) <= 90
    assert f"the others waited for {who} for " in said


def test_nobody_is_named_if_the_user_does_not_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(1, monkeypatch, HOROVOD_SLOW_WORKER="off") == ""
