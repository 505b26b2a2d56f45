"""What a running job shows to others: where it listens, what it answers, where its secret is."""

from __future__ import annotations

import base64
import os
import pickle
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from cluster import Cluster, why_not
from gated_job import RANK, gated_job, listeners_of, wait_until
from launcher import environment
from strangers import send_all, was_thrown_out

from horovod._rendezvous import make_secret
from horovod._rendezvous.handshake import Hello, pack_hello
from horovod.runner.protocol.frames import Kind, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gated_job import GatedJob

LOOPBACK = "127.0.0.1"
LEVELS = ("trace", "debug", "info", "warning", "error", "fatal")
_ABSTRACT = re.compile(r"@horovod-[0-9a-f]{32}")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[GatedJob]:
    with gated_job(tmp_path, HOROVOD_LOG_LEVEL="trace") as job:
        yield job


def finish(job: GatedJob) -> None:
    """Lets the ranks go to the end of the job, and expects that it ends well."""
    for gate in ("1", "0.end", "1.end"):
        job.let(gate)
    assert job.launcher.wait() == 0


def family_of(job: GatedJob) -> list[psutil.Process]:
    return [psutil.Process(job.launcher.process.pid), *job.launcher.descendants()]


# -- ports


def test_a_job_of_one_machine_listens_on_loopback_only(job: GatedJob) -> None:
    job.let("0")
    job.port_of(job.pid_of(0))  # it waits for the other one
    listening = [where for process in family_of(job) for where in listeners_of(process.pid)]
    assert len(listening) == 2  # the store, and rank 0
    assert {address for address, _ in listening} == {LOOPBACK}
    job.let("1")
    job.launcher.wait_lines("stdout", "rank [01] of 2 has 3", 2)
    ranks = [listeners_of(job.pid_of(rank)) for rank in range(2)]
    assert ranks == [[], []]  # nobody is expected any more
    for gate in ("0.end", "1.end"):
        job.let(gate)
    assert job.launcher.wait() == 0


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_job_of_many_hosts_listens_on_the_address_of_each_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1")
    command = [sys.executable, RANK, str(tmp_path)]
    with Cluster(2) as cluster, cluster.start(1, command) as running:
        pid = running.processes[0].pid
        wait_until(lambda: bool(listeners_of(pid)), "a port of rank 0")
        assert [address for address, _ in listeners_of(pid)] == [cluster.hosts[0].address]
        (tmp_path / "1").write_bytes(b"")
        assert "rank 1 of 2 has 3" in running.wait(60.0).check().output


# -- strangers with pickles


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self._mark),))


def pickle_bombs(mark: Path) -> list[bytes]:
    """A pickle as several protocols that were attacked would carry it."""
    bomb = pickle.dumps(Bomb(mark))
    return [
        bomb,
        struct.pack("<i", len(bomb)) + bytes(32) + bomb,
        struct.pack(">I", len(bomb)) + bomb,
        b"PUT /global/0 HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(bomb), bomb),
        pack_hello(make_secret(), Hello("store"), bytes(32)) + bomb,
        b"horovod\x01" + bomb,
    ]


def open_doors_of(job: GatedJob) -> list[tuple[int, object]]:
    """Each TCP port and each abstract unix socket of the job, as family and address."""
    doors: list[tuple[int, object]] = []
    for process in family_of(job):
        doors += [(socket.AF_INET, where) for where in listeners_of(process.pid)]
    names = set(_ABSTRACT.findall(Path("/proc/net/unix").read_text()))
    mine = Path(f"/proc/{job.pid_of(0)}/fd")
    inodes = {os.readlink(entry)[8:-1] for entry in mine.iterdir()}
    for line in Path("/proc/net/unix").read_text().splitlines():
        fields = line.split()
        if fields[-1] in names and fields[-2] in inodes:
            doors.append((socket.AF_UNIX, "\0" + fields[-1][1:]))
    return doors


def test_nobody_unpickles_what_a_stranger_sends(job: GatedJob, tmp_path: Path) -> None:
    mark = tmp_path / "unpickled"
    job.let("0")
    job.port_of(job.pid_of(0))
    doors = open_doors_of(job)
    assert len(doors) == 3  # the store; rank 0 for other hosts, and for this one
    for family, where in doors:
        for bomb in pickle_bombs(mark):
            with socket.socket(family) as stranger:
                stranger.settimeout(10)
                stranger.connect(where)
                send_all(stranger, bomb)
                with suppress(OSError):  # thrown out already
                    stranger.shutdown(socket.SHUT_WR)
                assert was_thrown_out(stranger)
    finish(job)
    assert not mark.exists()
    pickle.loads(pickle_bombs(mark)[0])  # it would have worked
    assert mark.is_dir()


# -- the secret


def secret_of(job: GatedJob) -> bytes:
    environ = psutil.Process(job.pid_of(0)).environ()
    path = Path(environ["HOROVOD_SECRET_FILE"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    return path.read_bytes()


def spellings_of(secret: bytes) -> list[bytes]:
    return [secret, secret.hex().encode(), base64.b64encode(secret)[:40], repr(secret)[2:].encode()]


def assert_hidden(secret: bytes, text: bytes, where: str) -> None:
    found = [spelling for spelling in spellings_of(secret) if spelling in text]
    assert not found, f"the secret stands in {where}"


@pytest.mark.slow
def test_the_secret_stands_on_no_command_line_in_no_environment_and_in_no_log(
    tmp_path: Path,
) -> None:
    for level in LEVELS:
        folder = tmp_path / level
        folder.mkdir()
        with gated_job(folder, HOROVOD_LOG_LEVEL=level) as job:
            secret = secret_of(job)
            for process in family_of(job):
                for file in ("cmdline", "environ"):
                    text = Path(f"/proc/{process.pid}/{file}").read_bytes()
                    assert_hidden(secret, text, f"{file} of {process.name()}")
            job.let("0")
            finish(job)
        printed = "\n".join((*job.launcher.lines["stdout"], *job.launcher.lines["stderr"]))
        assert_hidden(secret, printed.encode(), f"what is printed at level {level}")


def test_no_traceback_shows_the_secret(tmp_path: Path) -> None:
    """Of a rank that waits for another one in vain, with the secret in its hands."""
    with gated_job(tmp_path, HOROVOD_START_TIMEOUT="8") as job:
        secret = secret_of(job)
        job.let("0")  # the other one never comes
        assert job.launcher.wait() != 0
    printed = "\n".join((*job.launcher.lines["stdout"], *job.launcher.lines["stderr"]))
    assert "Traceback" in printed
    assert_hidden(secret, printed.encode(), "a traceback")


@pytest.mark.parametrize("framed", [False, True])
def test_an_agent_that_reads_half_a_job_does_not_repeat_it(framed: bool) -> None:
    secret = b'{"secret": "' + make_secret().hex().encode()
    text = encode(Kind.JOB, payload=secret) if framed else secret
    agent = subprocess.run(
        [sys.executable, "-m", "horovod.runner.agent"],
        input=text,
        capture_output=True,
        timeout=60,
        env=environment(),
    )
    assert b"something other than a job" in agent.stdout
    assert secret[:20] not in agent.stdout + agent.stderr


GET_DUMPABLE = "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)\n"


def test_who_holds_the_secret_may_not_be_dumped_and_what_it_executes_may() -> None:
    code = (
        f"{GET_DUMPABLE}"
        "from horovod.runner.system import processes\n"
        "processes.forbid_core_dumps()\n"
        f"{GET_DUMPABLE}"
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {GET_DUMPABLE!r}], check=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    assert done.stdout.split() == ["1", "0", "1"], done.stderr


def dumps_core(command: list[str], folder: Path) -> bool:
    """Aborts the command when it has printed something; whether the kernel wrote a core file."""
    ready, told = os.pipe()
    pid = os.posix_spawn(
        command[0],
        command,
        environment(PWD=str(folder)),
        file_actions=[(os.POSIX_SPAWN_DUP2, told, 1), (os.POSIX_SPAWN_DUP2, told, 2)],
    )
    os.close(told)
    with open(ready, "rb") as output:
        assert output.read(1), "nothing was printed"
        os.kill(pid, signal.SIGABRT)
        _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    return os.WCOREDUMP(status)


def test_a_launcher_that_crashes_leaves_no_core_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where core files go
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        wait = "print(1, flush=True); import time; time.sleep(60)"
        if not dumps_core([sys.executable, "-c", wait], tmp_path):
            pytest.skip("this machine writes no core files at all")
        words = ["-m", "horovod.runner.cli", "-np", "1", "--verbose", "sleep", "60"]
        assert not dumps_core([sys.executable, *words], tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
