"""Strangers of this machine at the ports of a job: it starts and ends as if nobody were there."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gated_job import gated_job
from launcher import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

STRANGERS = str(Path(__file__).with_name("strangers_at_the_door.py"))
# With strangers at work on the same cores; without them the same job takes about a second.
PATIENCE_S = 60.0


@contextmanager
def strangers(where: tuple[str, int], idle: int, slow: int) -> Iterator[None]:
    """Strangers in a process of their own; all of them are there when the block begins."""
    words = [sys.executable, STRANGERS, where[0], str(where[1]), str(idle), str(slow)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("there")
            yield
            assert process.poll() is None
        finally:
            process.stdin.close()
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def test_ten_thousand_idle_connections_and_slow_ones_stop_nothing(tmp_path: Path) -> None:
    with gated_job(tmp_path, HOROVOD_START_TIMEOUT="90") as job, ExitStack() as crowd:
        store = job.port_of(job.launcher.process.pid)
        for _ in range(2):
            crowd.enter_context(strangers(store, idle=5000, slow=25))
        job.let("0")
        rank = job.port_of(job.pid_of(0))
        crowd.enter_context(strangers(rank, idle=2000, slow=25))
        released_s = time.monotonic()
        job.let("1")
        for gate in ("0.end", "1.end"):
            job.let(gate)
        assert job.launcher.wait() == 0
        assert time.monotonic() - released_s < PATIENCE_S
        job.launcher.wait_lines("stdout", "rank [01] of 2 has 3", 2)
