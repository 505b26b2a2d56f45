"""A real agent, told frame by frame: workers come and go while others run."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil

from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
from horovod.runner.protocol.frames import Decoder, Frame, Kind, Stop, encode
from horovod.runner.starting.local import start_agent

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

DEADLINE_S = 60.0
SLEEPS = ("sh", "-c", "echo up; exec sleep 1000")


class Agent:
    """The launcher's end of an agent."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._frames: list[Frame] = []
        self._decoder = Decoder()

    def tell(self, kind: Kind, payload: bytes = b"", worker: int = -1) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(kind, worker, payload))
        self.process.stdin.flush()

    def until(self, *wanted: tuple[Kind, int]) -> dict[tuple[Kind, int], bytes]:
        """Reads until all of these have come, and returns what they say."""
        assert self.process.stdout is not None
        while True:
            found: dict[tuple[Kind, int], bytes] = {}
            for each in self._frames:  # output may come in pieces
                key = each.kind, each.worker
                found[key] = found.get(key, b"") + each.payload
            if set(wanted) <= found.keys():
                return found
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, f"the agent ended after {self._frames}"
            self._frames += self._decoder.feed(data)


@contextmanager
def agent(*workers: WorkerJob, stays: bool) -> Iterator[Agent]:
    process = start_agent(dict(os.environ))
    job = AgentJob("here", "/", dict(os.environ), workers, b"s" * 32, os.getpid(), stays=stays)
    try:
        told = Agent(process)
        told.tell(Kind.JOB, job.to_json())
        yield told
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(DEADLINE_S)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def worker(identity: int, *command: str) -> WorkerJob:
    return WorkerJob(identity, 0, {}, command or SLEEPS)


def test_one_worker_ends_while_others_run() -> None:
    with agent(worker(0), worker(7), stays=False) as told:
        said = told.until((Kind.STDOUT, 0), (Kind.STDOUT, 7))
        told.tell(Kind.END_WORKER, Stop().to_bytes(), 7)
        said = told.until((Kind.EXITED, 7))
        assert said[Kind.EXITED, 7] == b"-15"
        assert psutil.pid_exists(int(said[Kind.STARTED, 0]))
        assert (Kind.EXITED, 0) not in said


def test_a_worker_that_does_not_heed_the_signal_is_killed_with_its_children() -> None:
    script = "trap '' TERM; sleep 1000 & echo $!; wait; wait"
    with agent(worker(0), worker(1, "sh", "-c", script), stays=False) as told:
        child = psutil.Process(int(told.until((Kind.STDOUT, 1))[Kind.STDOUT, 1]))
        told.tell(Kind.END_WORKER, Stop(signal.SIGTERM, 0.1).to_bytes(), 1)
        assert told.until((Kind.EXITED, 1))[Kind.EXITED, 1] == b"-9"
        child.wait(DEADLINE_S)


def test_workers_are_started_while_others_run() -> None:
    with agent(worker(0), stays=False) as told:
        told.until((Kind.STARTED, 0))
        script = "import os; print(os.environ['HOROVOD_SECRET_FILE'])"
        told.tell(Kind.START_WORKER, worker(5, sys.executable, "-c", script).to_json())
        said = told.until((Kind.EXITED, 5))
        assert said[Kind.EXITED, 5] == b"0"
        assert said[Kind.STDOUT, 5].strip().endswith(b"secret")


def test_an_agent_without_workers_stays_if_asked_to() -> None:
    with agent(stays=True) as told:
        for identity in (3, 4):
            told.tell(Kind.START_WORKER, worker(identity, "true").to_json())
            said = told.until((Kind.EXITED, identity))
        assert (Kind.DONE, -1) not in said
        told.tell(Kind.STOP, Stop().to_bytes())
        told.until((Kind.DONE, -1))


def test_what_a_worker_left_running_ends_while_others_run() -> None:
    leaves = worker(1, "sh", "-c", "sleep 1000 & echo $!")
    with agent(worker(0), leaves, stays=True) as told:
        left = int(told.until((Kind.STDOUT, 1), (Kind.EXITED, 1))[Kind.STDOUT, 1])
        with suppress(psutil.NoSuchProcess):  # it may have ended already
            psutil.Process(left).wait(DEADLINE_S)
        assert (Kind.EXITED, 0) not in told.until((Kind.STARTED, 0))


def test_a_worker_that_cannot_be_started_does_not_stop_the_host() -> None:
    with agent(worker(0), worker(1, "/no/such/program"), worker(2), stays=False) as told:
        said = told.until((Kind.NOT_STARTED, 1), (Kind.STDOUT, 0), (Kind.STDOUT, 2))
        assert said[Kind.NOT_STARTED, 1].startswith(b"127 the command '/no/such/program'")
        assert (Kind.STOPPING, -1) not in said


def test_what_is_not_a_worker_ends_the_agent() -> None:
    with agent(worker(0), stays=False) as told:
        told.tell(Kind.START_WORKER, b"nonsense")
        said = told.until((Kind.STOPPING, -1), (Kind.EXITED, 0), (Kind.DONE, -1))
        assert b"something other than a job" in said[Kind.STOPPING, -1]
