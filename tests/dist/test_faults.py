"""What the other ranks and the user see when a rank dies, raises or leaves."""

from __future__ import annotations

import os
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from launcher import Launcher, launched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

FAULTY_RANK = str(Path(__file__).with_name("faulty_rank.py"))
LARGE = 8_000_000
SMALL = 1


def run_faulty(
    fault: str, num_elements: int, num_ranks: int = 3, culprit: int = 1, **env: str
) -> Launcher:
    words = [sys.executable, FAULTY_RANK, fault, str(culprit), str(num_elements)]
    with launched("-np", str(num_ranks), *words, **env) as launcher:
        launcher.wait()
    return launcher


def times_and_errors(launcher: Launcher) -> tuple[float, dict[int, tuple[float, str]]]:
    """When the fault was planted, and by rank when which error came."""
    output = "\n".join(launcher.lines["stdout"])
    planted = re.search(r"fault ([\d.]+)", output)
    assert planted, output + launcher.stderr
    errors = re.findall(r"\[(\d+)\]<stdout>:error ([\d.]+) (.*)", output)
    return float(planted[1]), {int(rank): (float(at), text) for rank, at, text in errors}


@pytest.mark.parametrize("num_elements", [SMALL, LARGE])
@pytest.mark.parametrize("fault", ["kill", "raise", "exit", "exit_early"])
def test_every_other_rank_learns_who_failed(fault: str, num_elements: int) -> None:
    launcher = run_faulty(fault, num_elements)
    planted, errors = times_and_errors(launcher)
    assert sorted(errors) == [0, 2], launcher.lines
    for at, text in errors.values():
        assert at - planted < 2.0
        assert re.search(r"rank 1 \(\S+:\d+\)", text), text
        expected = "PeerLostError" if fault in ("kill", "exit") else "ShutDownError"
        assert text.startswith(expected), text
    if fault == "raise":
        for _, text in errors.values():
            assert re.search(r"it raised RuntimeError at \S+faulty_rank\.py:\d+: planted", text)


@pytest.fixture(scope="module")
def jobs_with_a_stopped_rank() -> Iterator[dict[int, Future[Launcher]]]:
    """Jobs by their number of elements; they wait for their deadlines together."""
    stalls = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    with ThreadPoolExecutor() as pool:
        yield {count: pool.submit(run_faulty, "stop", count, **stalls) for count in (SMALL, LARGE)}


@pytest.mark.slow
@pytest.mark.parametrize("num_elements", [SMALL, LARGE])
def test_a_stopped_rank_is_named_when_the_stall_deadline_is_over(
    num_elements: int, jobs_with_a_stopped_rank: dict[int, Future[Launcher]]
) -> None:
    launcher = jobs_with_a_stopped_rank[num_elements].result()
    planted, errors = times_and_errors(launcher)
    assert sorted(errors) == [0, 2], launcher.lines
    for at, text in errors.values():
        assert text.startswith("StalledError"), text
        assert at - planted < 20
    assert re.search(r"rank 1 \(\S+:\d+\)", launcher.stderr), launcher.stderr
    assert launcher.process.returncode != 0


def test_the_launcher_names_the_killed_rank() -> None:
    launcher = run_faulty("kill", SMALL)
    assert launcher.process.returncode == 137
    assert "rank 1" in launcher.stderr
    assert "SIGKILL" in launcher.stderr


def test_the_coordinator_may_be_the_one_that_dies() -> None:
    launcher = run_faulty("kill", LARGE, culprit=0)
    planted, errors = times_and_errors(launcher)
    assert sorted(errors) == [1, 2]
    assert all("rank 0 (" in text and at - planted < 2.0 for at, text in errors.values())


def test_a_rank_whose_descriptors_were_closed_holds_nobody(tmp_path: Path) -> None:
    script = Path(__file__).with_name("closing_rank.py")
    os.mkfifo(tmp_path / "done")
    with launched("-np", "3", sys.executable, str(script), str(tmp_path / "done")) as launcher:
        launcher.wait()
    output = "\n".join(launcher.lines["stdout"])
    closed = re.search(r"\[1\]<stdout>:closed ([\d.]+)", output)
    assert closed, output + launcher.stderr
    errors = re.findall(r"\[([02])\]<stdout>:error ([\d.]+) (.*)", output)
    assert sorted(rank for rank, _, _ in errors) == ["0", "2"], output + launcher.stderr
    for _, at, text in errors:
        assert float(at) - float(closed[1]) < 20.0
        assert re.search(r"rank 1 \(\S+:\d+\)", text), text
    # Nothing of the engine's is in the files that have got the numbers.
    assert "[1]<stdout>:written [0]" in output, output + launcher.stderr


def test_nothing_is_left_in_shared_memory() -> None:
    launcher = run_faulty("kill", LARGE)
    # Looks at what the job had: tests of other programs beside it may leave files behind.
    (mapped,) = re.findall(r"\[1\]<stdout>:shares (.*)", "\n".join(launcher.lines["stdout"]))
    assert mapped, launcher.lines
    assert not set(mapped.split()) & set(os.listdir("/dev/shm"))


WAITING_RANK = """
import os, sys
import numpy as np
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM
from horovod._native import Buffer

print("port", os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"], flush=True)
open(sys.argv[1] + os.environ["HOROVOD_RANK"]).read()  # until the strangers have come
context.init()
values = np.ones(100_000)
buffer = Buffer.from_array(values)
context.global_group().allreduce([buffer], [buffer], PLAIN_SUM, name="x").wait(20)
print("sum", values.min(), flush=True)
"""


def test_strangers_at_the_store_are_dropped_and_the_job_goes_on(tmp_path: Path) -> None:
    gates = [tmp_path / f"gate-{rank}" for rank in range(2)]  # a reader each, so that none is late
    for gate in gates:
        os.mkfifo(gate)
    words = [sys.executable, "-c", WAITING_RANK, str(tmp_path / "gate-")]
    with launched("-np", "2", *words) as launcher, ExitStack() as stack:
        port = int(launcher.wait_lines("stdout", r"port \d+", 2)[0].rsplit(" ", 1)[1])
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(20)
        ]
        messages = [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100_000, b"", os.urandom(96)]
        for index, stranger in enumerate(strangers):
            with suppress(OSError):  # it may have been dropped already
                stranger.sendall(messages[index % 4])
        for gate in gates:
            gate.write_text("go")
        assert launcher.wait() == 0, launcher.stderr
        for stranger in strangers:
            stranger.settimeout(10)
            with suppress(ConnectionResetError):
                assert stranger.recv(1) == b"", "a stranger got an answer"
    sums = [line for line in launcher.lines["stdout"] if "sum" in line]
    assert sorted(sums) == ["[0]<stdout>:sum 2.0", "[1]<stdout>:sum 2.0"]
