"""Hosts that join an elastic job by themselves, without ssh: horovodrun --join."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from cluster import Cluster, entered, why_not
from launcher import Launcher, assert_all_gone, horovodrun, launched

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = str(Path(__file__).with_name("driven_worker.py"))
PLACE = re.compile(r"rank (\d+) of \d+ is (\d+) at")
END_S = 30.0


class Job:
    """A job of one worker here, which hosts may join."""

    def __init__(self, directory: Path, stack: ExitStack, *words: str, host: str = "") -> None:
        self.file = directory / "job.join"
        self.end = directory / "end"
        self.stack = stack
        wanted = ("-np", "1", "--max-np", "3", "-H", "localhost:1", "--join-file", str(self.file))
        with inside(host):
            self.launcher = self._launched(*wanted, *words, sys.executable, WORKER, str(self.end))
        self.pids = self.trains(1)

    def _launched(self, *words: str, **env: str) -> Launcher:
        return self.stack.enter_context(launched("--verbose", *words, **env))

    def trains(self, size: int, times: int = 1) -> dict[int, int]:
        """Waits until all ranks of a size have begun for the so manieth time; the pid of each."""
        pattern = rf"rank \d+ of {size} is"
        lines = self.launcher.wait_lines("stdout", pattern, size * times)[size * (times - 1) :]
        return {int(each[1]): int(each[2]) for line in lines if (each := PLACE.search(line))}

    def joined_by(self, name: str, host: str = "", **env: str) -> Launcher:
        """A host that joins with two slots."""
        with inside(host):
            return self._launched("--join", str(self.file), "-H", f"{name}:2", **env)

    def ends(self) -> None:
        self.end.touch()
        assert self.launcher.wait() == 0, self.launcher.lines


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """In the network namespace of a host, if one is named."""
    with ExitStack() as stack:
        if namespace:
            stack.enter_context(entered(namespace))
        yield


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with ExitStack() as stack:
        yield Job(tmp_path, stack)


def workers_of(host: Launcher) -> list[psutil.Process]:
    found = []
    for each in host.descendants():
        with suppress(psutil.Error):  # it has ended meanwhile
            if WORKER in each.cmdline():
                found.append(each)
    return found


def test_a_host_joins_and_stays_until_the_job_ends(job: Job) -> None:
    host = job.joined_by("second", TOKEN="of the host")
    pids = job.trains(3)
    assert pids[0] == job.pids[0]
    mine = {each.pid: each.environ() for each in workers_of(host)}
    assert set(mine) == {pids[1], pids[2]}
    assert {env["TOKEN"] for env in mine.values()} == {"of the host"}
    job.ends()
    assert host.wait() == 0
    assert host.lines["stderr"][-1] == "horovodrun: the job has ended"
    assert not job.file.exists()


def test_a_host_leaves_politely_and_may_join_again(job: Job) -> None:
    for times in (1, 2):
        host = job.joined_by("second")
        job.trains(3, times)
        host.process.send_signal(signal.SIGTERM)
        assert host.wait() == 0
        assert host.lines["stderr"][-1] == "horovodrun: it has left the job"
        assert job.trains(1, times + 1) == job.pids
    job.ends()
    assert "0 failures" in job.launcher.stderr


def test_a_host_that_dies_takes_its_workers_with_it_and_no_others(job: Job) -> None:
    host = job.joined_by("second")
    job.trains(3)
    processes = host.descendants()
    host.process.kill()
    assert job.trains(1, times=2) == job.pids
    assert_all_gone(processes, END_S)
    job.ends()


def test_a_second_signal_ends_the_workers_at_once(job: Job) -> None:
    host = job.joined_by("second")
    pids = job.trains(3)
    for rank in (1, 2):
        os.kill(pids[rank], signal.SIGSTOP)  # they cannot leave politely
    host.process.send_signal(signal.SIGINT)
    host.wait_lines("stderr", "a second signal ends them now")
    processes = host.descendants()
    host.process.send_signal(signal.SIGINT)
    assert host.wait() == 0
    assert_all_gone(processes, END_S)
    assert job.trains(1, times=2) == job.pids
    job.ends()


def test_the_death_of_the_launcher_ends_the_workers_of_a_host(job: Job) -> None:
    host = job.joined_by("second")
    job.trains(3)
    processes = [*host.descendants(), *job.launcher.descendants()]
    job.launcher.process.kill()
    assert host.wait() == 1
    assert "the job was lost" in host.lines["stderr"][-1]
    assert_all_gone(processes, END_S)


def test_a_host_of_a_name_that_is_taken_is_refused(job: Job) -> None:
    refused = job.joined_by("localhost-1")
    job.trains(3)
    again = horovodrun("--join", str(job.file), "-H", "localhost-1:2")
    assert again.process.returncode == 1
    assert "has a host localhost-1 already" in again.stderr
    assert refused.process.poll() is None
    job.ends()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--join", "FILE", "python", "train.py"], "a command is not for hosts that join"),
        (["--join", "FILE"], "-H localhost:N"),
        (["--join", "FILE", "-H", "a:1,b:1"], "-H localhost:N"),
        (
            ["--join", "FILE", "-H", "localhost:2", "-np", "2"],
            "-np is not for hosts that join a job",
        ),
        (["--join", "FILE", "-H", "a:1", "--min-np", "2"], "--min-np is not for"),
        (["--join", "FILE", "-H", "localhost:2"], "there is no such file"),
    ],
)
def test_wrong_words_are_refused(words: list[str], message: str) -> None:
    refused = horovodrun(*words)
    assert refused.process.returncode == 2
    assert message in refused.stderr


needs_hosts = pytest.mark.skipif(bool(why_not()), reason=why_not())


@needs_hosts
def test_a_host_without_ssh_joins_over_the_network_and_vanishes(tmp_path: Path) -> None:
    with Cluster(2) as cluster, ExitStack() as stack:
        first, second = (host.namespace for host in cluster.hosts)
        job = Job(tmp_path, stack, host=first)
        host = job.joined_by("second", host=second)
        job.trains(3)
        processes = host.descendants()
        began_s = time.monotonic()
        cluster.cut(1)
        assert job.trains(1, times=2) == job.pids
        assert time.monotonic() - began_s < END_S
        assert host.wait() == 1
        assert "the job was lost" in host.lines["stderr"][-1]
        assert_all_gone(processes, END_S)
        job.ends()
