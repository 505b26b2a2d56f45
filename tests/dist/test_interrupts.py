"""Ctrl-C and preemption: ranks get the signal and the time to save."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from launcher import DEADLINE_S, assert_all_gone, environment, launched

if TYPE_CHECKING:
    from collections.abc import Sequence

RANK = str(Path(__file__).with_name("interrupted_rank.py"))
DEAF = "trap '' TERM INT; echo ready; while :; do sleep 1000; done"


def saving(path: Path, seconds: float = 0.5) -> Sequence[str]:
    return [sys.executable, RANK, str(path), "1", str(seconds)]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_rank_that_waits_for_others_saves(
    signum: signal.Signals, code: int, tmp_path: Path
) -> None:
    """Although the others end first, in the middle of the operation it waits for."""
    path = tmp_path / "saved"
    with launched("-np", "3", *saving(path)) as launcher:
        launcher.wait_lines("stdout", "ready", 3)
        family = launcher.descendants()
        launcher.process.send_signal(signum)
        assert launcher.wait() == code
        assert_all_gone(family, 5)
    assert launcher.lines["stdout"][-1] == "[0]<stdout>:saved"
    assert path.stat().st_size == 1_000_000
    assert f"horovodrun: stopped by {signum.name}" in launcher.lines["stderr"]


def test_the_closing_terminal_is_as_sigterm(tmp_path: Path) -> None:
    with launched("-np", "2", *saving(tmp_path / "saved")) as launcher:
        launcher.wait_lines("stdout", "ready", 2)
        launcher.process.send_signal(signal.SIGHUP)
        launcher.process.send_signal(signal.SIGHUP)  # as a shell and the kernel do
        assert launcher.wait() == 129
    assert launcher.lines["stdout"][-1] == "[0]<stdout>:saved"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_who_does_not_end_is_killed_after_the_grace(signum: signal.Signals) -> None:
    with launched("-np", "2", "--grace", "0.5", "sh", "-c", DEAF) as launcher:
        launcher.wait_lines("stdout", "ready", 2)
        family = launcher.descendants()
        began_s = time.monotonic()
        launcher.process.send_signal(signum)
        assert launcher.wait() == 128 + signum
        assert 0.5 < time.monotonic() - began_s < 25
        assert_all_gone(family, 5)
    assert launcher.lines["stderr"][-1] == (
        f"horovodrun: stopped by {signum.name}; ranks 0, 1 did not end within 0.5 s (--grace) and "
        "were killed"
    )


def test_a_second_ctrl_c_ends_a_rank_that_saves(tmp_path: Path) -> None:
    with launched("-np", "2", *saving(tmp_path / "saved", 1000)) as launcher:
        launcher.wait_lines("stdout", "ready", 2)
        family = launcher.descendants()
        launcher.process.send_signal(signal.SIGINT)
        launcher.wait_lines("stderr", "the ranks have 30 s to end; Ctrl-C again ends them at once")
        began_s = time.monotonic()
        launcher.process.send_signal(signal.SIGINT)
        assert launcher.wait() == 130
        assert time.monotonic() - began_s < 20
        assert_all_gone(family, 5)


def test_a_failure_leaves_less_time_than_a_signal() -> None:
    """The grace is that of the user; a job that is lost ends soon."""
    script = f"if [ $HOROVOD_RANK = 1 ]; then exit 3; fi; {DEAF}"
    with launched("-np", "2", "--grace", "1000", "sh", "-c", script) as launcher:
        assert launcher.wait() == 3


def test_ctrl_c_in_horovod_run_reaches_the_function(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import horovod, time\n"
        "def work():\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        while True: time.sleep(0.1)\n"
        "    except KeyboardInterrupt:\n"
        "        time.sleep(0.5)\n"
        "        print('saved', flush=True)\n"
        "try:\n"
        "    horovod.run(work, num_proc=2)\n"
        "except KeyboardInterrupt:\n"
        "    print('caught', flush=True)\n"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment(), stdout=pipe, stderr=pipe, text=True
    )
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)].count("") == 0
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert sorted(out.splitlines()) == ["[0]<stdout>:saved", "[1]<stdout>:saved", "caught"]
