"""Jobs whose ranks another launcher has started are shown by rank 0, or by node 0."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import sys
import time
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from viewed_jobs import HERE, Job, until

from horovod._rendezvous.reserved_port import reserve_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMED_WITHIN_S = 20.0
DELAY_S = 0.2
HOROVODRUN = ["-m", "horovod.runner.cli"]
SENTENCE = r"rank 1 on \S+ makes the others wait: .* longer in its backward pass \(slow_rank.py"
SHOWN = {"HOROVOD_DASHBOARD": "1", "HOROVOD_WATCH": "1", "HOROVOD_METRICS_PORT": "0"}
OPTIONS = ["--dashboard", "--watch", "--metrics-port", "0"]


def read_stream(address: str, text: str, timeout_s: float) -> None:
    """Read the stream of a page until it has a text."""
    base, token = address.split("#")
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{base}stream", headers=headers)
    deadline = time.monotonic() + timeout_s
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        while time.monotonic() < deadline:
            if text in answer.readline().decode():
                return
    raise AssertionError(f"{text!r} is not in the stream of the page")


def ranks_of(stop: Path) -> list[str]:
    return [str(HERE / "slow_rank.py"), "backward", "1", str(DELAY_S), str(stop)]


@pytest.fixture
def stop(tmp_path: Path) -> Path:
    """The file that ends the ranks."""
    return tmp_path / "stop"


@pytest.fixture
def jobs() -> Iterator[ExitStack]:
    """Ends what the test has started."""
    with ExitStack() as stack:
        yield stack


def begin(jobs: ExitStack, home: Path, words: list[str], **env: str) -> Job:
    job = Job(words, home, module=(), env=env)
    jobs.callback(job.end)
    return job


def assert_shown(job: Job, home: Path, stop: Path, host: str = "") -> None:
    """The reason for slow steps is on the page, in the output and in the metrics."""
    address = job.wait_for("the page of the job: ").split("job: ")[-1]
    job.wait_for("step 0: loss")
    began = time.monotonic()
    line = job.wait_for(SENTENCE)
    assert host in line
    url = job.wait_for("metrics: ").split("metrics: ")[1].split(";")[0]
    token = (home / ".horovod" / "metrics.token").read_text()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    verdict = r'job_verdict{.*kind="rank",rank="1",phase="backward"}'

    def metrics() -> str:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.read().decode())

    until(lambda: re.search(verdict, metrics()), 10, "a metric of the verdict")
    read_stream(address, "makes the others wait", 10)
    assert time.monotonic() - began < NAMED_WITHIN_S
    stop.touch()
    assert job.process.wait(60) == 0
    assert re.search(SENTENCE, job.wait_for("% of the time watched: "))


def test_torchrun(jobs: ExitStack, tmp_path: Path, stop: Path) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = begin(jobs, tmp_path, [sys.executable, *torchrun, *ranks_of(stop)], **SHOWN)
    assert_shown(job, tmp_path, stop)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_mpirun_that_horovodrun_starts(jobs: ExitStack, tmp_path: Path, stop: Path) -> None:
    words = [*HOROVODRUN, "-np", "2", "--mpi", *OPTIONS, sys.executable]
    job = begin(jobs, tmp_path, [sys.executable, *words, *ranks_of(stop)])
    assert_shown(job, tmp_path, stop)


def test_node_0_shows_the_ranks_of_all_nodes(jobs: ExitStack, tmp_path: Path, stop: Path) -> None:
    port = jobs.enter_context(reserve_port()).getsockname()[1]
    where = ["--num-nodes", "2", "--rendezvous", f"127.0.0.1:{port}"]
    secret = {"HOROVOD_SECRET_KEY": secrets.token_hex(32)}
    node = [
        begin(
            jobs,
            tmp_path,
            [sys.executable, *HOROVODRUN, "-np", "2", *where, "--node-rank", str(rank), *OPTIONS,
             sys.executable, *ranks_of(stop)],
            **secret,
        )
        for rank in range(2)
    ]  # fmt: skip
    assert_shown(node[0], tmp_path, stop, f"{socket.gethostname()}#1")
    assert node[1].process.wait(60) == 0
    assert not [line for line in node[1].lines if "the page of the job" in line]


def test_a_program_that_nobody_launched(jobs: ExitStack, tmp_path: Path, stop: Path) -> None:
    words = [sys.executable, str(HERE / "slow_rank.py"), "input", "0", "0.1", str(stop)]
    job = begin(jobs, tmp_path, words, HOROVOD_WATCH="1")
    job.wait_for("horovod: the ranks wait for their input in .* of a step")
    stop.touch()
    assert job.process.wait(60) == 0


def test_kubeflow_hears_of_a_program_that_nobody_launched(
    jobs: ExitStack, tmp_path: Path, stop: Path
) -> None:
    words = [sys.executable, str(HERE / "slow_rank.py"), "none", "0", "0", str(stop)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/status"
        job = begin(jobs, tmp_path, words, KUBEFLOW_TRAINER_STATUS_URL=url)
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as request:
            assert request.readline().startswith(b"POST /status ")
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    stop.touch()
    assert job.process.wait(60) == 0


@pytest.mark.parametrize("nproc", [1, 2])
def test_what_cannot_be_served_ends_the_job_at_its_start(
    jobs: ExitStack, tmp_path: Path, stop: Path, nproc: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        words = [sys.executable, *ranks_of(stop)]
        if nproc > 1:
            words[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        job = begin(jobs, tmp_path, words, HOROVOD_METRICS_PORT=port)
        job.wait_for(rf"--metrics-port {port}: Address already in use")
        assert job.process.wait(60) != 0
        assert not [line for line in job.lines if "loss" in line]


def test_rank_0_that_is_killed_leaves_no_process(
    jobs: ExitStack, tmp_path: Path, stop: Path
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    words = [sys.executable, str(HERE / "slow_rank.py"), "none", "0", "0", str(stop)]
    job = begin(jobs, tmp_path, words, PIDS=str(pids), **SHOWN)
    address = job.wait_for("the page of the job: ").split("job: ")[-1]
    job.wait_for("step 0: loss")
    job.process.kill()
    port = int(address.split(":")[2].split("/")[0])

    def is_gone() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            return True
        return False

    until(is_gone, 60, "the end of the page")
    assert os.listdir(pids) == ["0"]
