"""Consoles that are slow or stuck, and disks that are full: the launcher acts all the same."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import termios
import threading
import time
from typing import IO, TYPE_CHECKING

import psutil
import pytest
from launcher import DEADLINE_S, assert_all_gone, environment, python

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Rank 0 prints for ever; rank 1 fails when its file is there. Their pids tell that they run.
SPEWING = r"""
import os, sys, time
shape = {"long": b"x" * 65536, "lines": b"0123456789\n" * 6000, "binary": bytes(range(256)) * 256,
         "returns": b"\r" * 65536, "dots": b"."}[sys.argv[2]]
while os.environ["HOROVOD_RANK"] == "0":
    os.write(1, shape)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
sys.exit(f"the cause at {time.monotonic()}")
"""


@contextlib.contextmanager
def console_of(stdout: int, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher with that stdout; its stderr is a pipe."""
    process = subprocess.Popen(
        [sys.executable, "-m", "horovod.runner.cli", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_stuck(process: subprocess.Popen[bytes], writes_to: int) -> None:
    """Waits until the console took all that it can, and the ranks wait in turn."""
    launcher, deadline_s = psutil.Process(process.pid), time.monotonic() + DEADLINE_S
    before, calm = -1.0, 0
    while calm < 5:
        assert time.monotonic() < deadline_s
        select.select([], [], [], 0.1)
        used = sum(
            sum(each.cpu_times()[:2]) for each in [launcher, *launcher.children(recursive=True)]
        )
        moves = bool(select.select([], [writes_to], [], 0)[1]) or used - before > 0.03
        before, calm = used, 0 if moves else calm + 1


@pytest.mark.parametrize("shape", ["long", "lines"])
def test_a_failure_behind_a_console_that_does_not_read(shape: str, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    go = tmp_path / "go"
    with console_of(write_end, "-np", "2", *python(SPEWING), str(go), shape) as process:
        wait_until_stuck(process, write_end)
        family = psutil.Process(process.pid).children(recursive=True)
        assert psutil.Process(process.pid).memory_info().rss < 200e6
        go.touch()
        assert process.stderr is not None
        said = process.stderr.readline()
        took_s = time.monotonic() - float(said.split()[-1])
        assert took_s < 10, "nobody reads the console, ever"
        assert process.stderr.readline().startswith(
            b"horovodrun: rank 1 on localhost exited with code 1; stopping rank 0"
        )
        assert_all_gone(family, 9)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 1
    assert re.search(rb"horovodrun: \d+ bytes of output are lost: nobody read them\n", err)
    assert b"rank 1 on localhost exited with code 1; the last lines of its stderr:\n" in err
    os.close(read_end)
    os.close(write_end)


def test_sigterm_behind_a_terminal_that_was_stopped(tmp_path: Path) -> None:
    """As with Ctrl-S; all of stdout and stderr is that terminal."""
    master, slave = pty.openpty()
    termios.tcflow(slave, termios.TCOOFF)
    words = [sys.executable, "-m", "horovod.runner.cli", "-np", "2"]
    process = subprocess.Popen(
        [*words, *python(SPEWING), str(tmp_path / "go"), "lines"],
        stdout=slave,
        stderr=slave,
        env=environment(),
        start_new_session=True,
    )
    try:
        wait_until_stuck(process, slave)
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert_all_gone(family, 20)
        assert process.wait(DEADLINE_S) == 143
    finally:
        process.kill()
        process.wait()
        os.close(slave)
        os.close(master)


def test_what_a_slow_reader_takes_is_complete(tmp_path: Path) -> None:
    """It begins to read only when all is stuck, and then gets every line."""
    code = (
        "import os\n"
        "for i in range(400): os.write(1, b''.join(b'%d %d\\n' % (i, j) for j in range(1000)))"
    )
    read_end, write_end = os.pipe()
    with console_of(write_end, "-np", "2", *python(code)) as process:
        wait_until_stuck(process, write_end)
        os.close(write_end)
        with open(read_end, "rb") as reader:
            lines = reader.read().splitlines()
        assert process.wait(DEADLINE_S) == 0
    expected = [b"%d %d" % (i, j) for i in range(400) for j in range(1000)]
    for rank in (0, 1):
        prefix = b"[%d]<stdout>:" % rank
        assert [line[len(prefix) :] for line in lines if line.startswith(prefix)] == expected
    assert len(lines) == 2 * len(expected)


@pytest.mark.parametrize("shape", ["long", "lines", "binary", "returns", "dots"])
def test_a_failure_amid_output_of_any_shape(shape: str, tmp_path: Path) -> None:
    """50 MB of it; a launcher that is behind with it still hears of the failure at once."""
    read_end, write_end = os.pipe()
    go, noticed_s = tmp_path / "go", []
    words = ["--verbose", "-np", "2", *python(SPEWING), str(go), shape]

    def listen(stderr: IO[bytes]) -> None:
        for line in stderr:
            if b"rank 1 on localhost ended with code 1" in line:
                noticed_s.append(time.monotonic())
            said.append(line)

    said: list[bytes] = []
    with (
        console_of(write_end, *words) as process,
        open(read_end, "rb", buffering=0) as reader,
    ):
        os.close(write_end)
        threads = [
            threading.Thread(target=fail_later, args=(process.pid, shape, go)),
            threading.Thread(target=listen, args=(process.stderr,)),
        ]
        for thread in threads:
            thread.start()
        while reader.read(1 << 20):
            pass
        for thread in threads:
            thread.join()
        assert process.wait(DEADLINE_S) == 1
    err = b"".join(said)
    assert noticed_s[0] - float(err.split(b"the cause at ")[1].split()[0]) < 5
    assert b"horovodrun: rank 1 on localhost exited with code 1; stopping rank 0\n" in err


def fail_later(pid: int, shape: str, go: Path) -> None:
    """Lets rank 1 fail when the launcher has read a lot."""
    launcher, deadline_s = psutil.Process(pid), time.monotonic() + 10 * DEADLINE_S
    enough = 500_000 if shape == "dots" else 1e6 * float(os.environ.get("TEST_MEGABYTES", "50"))
    while launcher.io_counters().read_chars < enough and time.monotonic() < deadline_s:
        select.select([], [], [], 0.05)
    go.touch()


# The limit of a file's size stands for the disk.
SMALL_DISK = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
os.execv(sys.executable, [sys.executable, "-m", "horovod.runner.cli", *sys.argv[1:]])
"""


def test_a_disk_that_is_full_ends_only_the_files(tmp_path: Path) -> None:
    code = "import os\nfor i in range(100): os.write(1, b'x' * 99 + b'\\n')"
    run = subprocess.run(
        [*python(SMALL_DISK), "-np", "1", "--output-filename", str(tmp_path), *python(code)],
        env=environment(PYTHONDONTWRITEBYTECODE="1"),  # it would be cut, too
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert run.returncode == 0
    assert run.stdout == (b"[0]<stdout>:" + b"x" * 99 + b"\n") * 100
    path = tmp_path / "rank.0" / "stdout"
    assert path.read_bytes() == (b"x" * 99 + b"\n") * 10
    reason = f"cannot write {path}: File too large"
    assert run.stderr.decode().splitlines() == [
        f"horovodrun: {reason}; nothing more is written to such files",
        f"horovodrun: the output files are incomplete: {reason}",
    ]
