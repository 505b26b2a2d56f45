"""``--stdin-rank``: somebody talks to the debugger in one rank, through a pipe and a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launcher import DEADLINE_S, environment

SCRIPT = str(Path(__file__).with_name("debugged_rank.py"))
WORDS = [sys.executable, "-m", "horovod.runner.cli", "-np", "3", "--stdin-rank"]
# All ranks have written their line, and rank 1 asks; in any order.
ASKED = r"(?s)^(?=(.*is a terminal: \w+\n){3})(?=.*\[1\]<stdout>:\(Pdb\) )"


def read_until(descriptor: int, pattern: str) -> str:
    """What comes up to and with the pattern; fails if it does not come."""
    text, deadline_s = "", time.monotonic() + DEADLINE_S
    while not re.search(pattern, text):
        readable, _, _ = select.select([descriptor], [], [], deadline_s - time.monotonic())
        assert readable, f"no {pattern!r} in {text!r}"
        data = os.read(descriptor, 65536)
        assert data, f"no {pattern!r} in {text!r}"
        text += data.decode().replace("\r\n", "\n")
    return text


def test_breakpoint_in_one_rank_through_a_pipe() -> None:
    words = [*WORDS, "1", sys.executable, SCRIPT]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked = read_until(process.stdout.fileno(), ASKED)
        for rank in range(3):
            assert f"[{rank}]<stdout>:stdin of {rank} is a terminal: False\n" in asked
        os.write(process.stdin.fileno(), b"answer = 42\n")
        read_until(process.stdout.fileno(), r"\(Pdb\) $")
        os.write(process.stdin.fileno(), b"p answer + 1000\nc\n")
        rest = read_until(process.stdout.fileno(), r"(?s)(ends with.*){3}\n")
        assert process.wait(DEADLINE_S) == 0
    assert "(Pdb) 1042\n" in rest or rest.startswith("1042\n"), rest
    lines = re.findall(r"\d ends with \d+$", rest, re.M)
    assert sorted(lines) == ["0 ends with 41", "1 ends with 42", "2 ends with 41"]


def test_breakpoint_in_one_rank_through_a_terminal() -> None:
    master, slave = pty.openpty()
    words = [*WORDS, "1", sys.executable, SCRIPT]
    with subprocess.Popen(
        words,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(NO_COLOR="1"),
        start_new_session=True,
    ) as process:
        os.close(slave)
        asked = read_until(master, ASKED)
        assert "[1]<stdout>:stdin of 1 is a terminal: True\n" in asked
        assert "[0]<stdout>:stdin of 0 is a terminal: False\n" in asked
        os.write(master, b"p answer + 1000\n")
        assert "p answer + 1000\n1041\n" in read_until(master, r"1041\n")
        os.write(master, b"c\n")
        read_until(master, r"(?s)(ends with.*){3}\n")
        assert process.wait(DEADLINE_S) == 0
    os.close(master)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["3"], "--stdin-rank 3: the ranks of this job are 0 to 2"),
        (["-1"], "--stdin-rank -1: the ranks of this job are 0 to 2"),
        (["1", "-H", "localhost,no-such-host:2"], "rank 1 runs on no-such-host, and only a rank"),
        (["1", "--mpi"], "--stdin-rank is not for jobs that mpirun or jsrun starts"),
    ],
)
def test_ranks_that_cannot_have_stdin(words: list[str], message: str) -> None:
    done = subprocess.run(
        [*WORDS, *words, "true"], capture_output=True, env=environment(), text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr


def test_a_launcher_without_stdin_says_so() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *WORDS, "1", "true"],
        capture_output=True,
        env=environment(),
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--stdin-rank: horovodrun has no stdin" in done.stderr
