"""The launcher's loop with agents that misbehave."""

from __future__ import annotations

import io
import selectors
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.runner.output.console import Console
from horovod.runner.output.output import Output
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
from horovod.runner.protocol.frames import Kind, encode
from horovod.runner.supervision import commands, events
from horovod.runner.supervision.agent_executor import AgentExecutor
from horovod.runner.supervision.agents import Agents, Reporting, job_by_host
from horovod.runner.supervision.fixed import FixedJob, placed_workers
from horovod.runner.supervision.outcome import Outcome
from horovod.runner.supervision.policy import Decision, State
from horovod.runner.supervision.supervisor import Supervisor

if TYPE_CHECKING:
    from horovod.runner.supervision.events import Event

JOB = AgentJob(
    "somewhere", "/", {}, (WorkerJob(0, 0, {}, ("x",)), WorkerJob(1, 1, {}, ("x",))), b"s" * 32
)


def supervise(script: str, start_timeout_s: float = 30.0) -> tuple[Outcome, str]:
    """Runs a job whose agent is a shell script."""

    stdout = io.StringIO()
    policy = FixedJob(placed_workers([JOB]), start_timeout_s, grace_s=5.0)
    executor = executor_of(Agents(lambda job: shell(script), job_by_host([JOB])), stdout)
    began_s = time.monotonic()
    outcome = Supervisor(policy, executor).run()
    assert time.monotonic() - began_s < 60, "the scripts sleep for 100 s"
    return outcome, stdout.getvalue()


def shell(script: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(["sh", "-c", script], stdin=pipe, stdout=pipe, stderr=pipe)


def executor_of(agents: Agents, stdout: io.StringIO) -> AgentExecutor:
    output = Output(Console(stdout, io.StringIO()))
    return AgentExecutor(agents, output, Reporting(announce=lambda line: None))


def said(*frames: bytes) -> str:
    """A shell command that writes frames to stdout."""
    return "printf '" + "".join(f"\\{byte:03o}" for byte in b"".join(frames)) + "'\n"


READY = encode(Kind.READY, payload=b"1")
DONE = encode(Kind.DONE)


def test_an_agent_that_reports_success() -> None:
    frames = [READY]
    frames += [encode(Kind.STDOUT, 1, b"hello")]
    frames += [encode(Kind.EXITED, rank, b"0") for rank in (0, 1)]
    outcome, text = supervise(said(*frames, DONE))
    assert outcome == Outcome(0)
    assert text == "[1]<stdout>:hello\n"


def test_an_agent_that_does_not_come_up() -> None:
    outcome, _ = supervise("echo asking for a password >&2; exec sleep 100", 1.5)
    assert outcome.exit_code == 1
    assert "somewhere: no agent started there within 1.5 s" in outcome.message
    assert "asking for a password" in outcome.message


def test_an_agent_that_ends_without_a_word() -> None:
    outcome, _ = supervise("echo no such module >&2; exit 3")
    assert outcome.exit_code == 1
    assert "cannot start on host somewhere: it ended" in outcome.message
    assert "no such module" in outcome.message


def test_an_agent_that_is_something_else() -> None:
    outcome, _ = supervise("echo 'Welcome to this host!'; exec sleep 100", 1.5)
    assert outcome.exit_code == 1
    assert "Welcome" in outcome.message
    outcome, _ = supervise("exec yes Welcome")
    assert outcome.exit_code == 1
    assert "not an agent: b'Welcome" in outcome.message


def test_what_a_login_script_prints_is_skipped() -> None:
    frames = [READY, *(encode(Kind.EXITED, rank, b"0") for rank in (0, 1)), DONE]
    outcome, text = supervise("echo 'Welcome to this host!'\n" + said(*frames))
    assert outcome == Outcome(0)
    assert text == ""


def test_an_agent_of_another_version() -> None:
    outcome, _ = supervise(said(encode(Kind.READY, payload=b"1 0.28.1")))
    assert outcome.exit_code == 1
    assert "somewhere: it has Horovod 0.28.1, but this machine has" in outcome.message
    assert outcome.summary == ""  # nothing ran


def test_an_agent_that_ends_its_ranks_on_its_own() -> None:
    stopping = encode(Kind.STOPPING, payload=b"0 the disk is full")
    outcome, _ = supervise(said(READY, stopping, encode(Kind.EXITED, 0, b"-15"), DONE))
    assert outcome.exit_code == 1
    assert "the agent of somewhere ends its ranks: the disk is full" in outcome.message


def test_the_failure_of_a_rank_is_told_even_if_the_agent_dies_after_it() -> None:
    outcome, _ = supervise(
        said(READY, encode(Kind.STDERR, 1, b"boom\n"), encode(Kind.EXITED, 1, b"5"))
    )
    assert outcome.exit_code == 5
    assert outcome.failure is not None
    assert outcome.failure.rank == 1
    assert "boom" in outcome.report


def test_an_agent_both_of_whose_pipes_end_at_once() -> None:
    """The end of the first one closes the link, although the selector has found the second one."""
    happened: list[Event] = []
    with selectors.DefaultSelector() as selector:
        agents = Agents(lambda job: shell("echo bad >&2"), job_by_host([JOB]))
        executor = executor_of(agents, io.StringIO())
        executor.begin(selector, happened.append)
        executor.execute(commands.UseHost("somewhere", 2))
        ready: list[selectors.SelectorKey] = []
        while len(ready) < 2:
            ready = [key for key, _ in selector.select(10)]
        for key in sorted(ready, key=lambda key: key.fd):  # stdout first
            key.data(key.fileobj)
        executor.close()
    (lost,) = happened
    assert isinstance(lost, events.HostLost)
    assert "bad" in lost.reason


def test_an_agent_that_cannot_be_created() -> None:
    def start(job: AgentJob) -> subprocess.Popen[bytes]:
        raise OSError("no more processes")

    executor = executor_of(Agents(start, job_by_host([JOB])), io.StringIO())
    outcome = Supervisor(FixedJob(placed_workers([JOB]), 30.0, 5.0), executor).run()
    assert outcome.message == (
        "cannot start on host somewhere: cannot start its agent: no more processes"
    )


class Twice:
    """A policy whose first command causes an event before its second one is carried out."""

    def begin(self, at_s: float) -> Decision:
        return Decision(State(), [commands.UseHost("red", 1), commands.UseHost("blue", 1)])

    def decide(self, state: State, event: Event) -> Decision:
        return Decision(State(None, Outcome(0)), (), f"{type(event).__name__}")


def test_what_follows_from_a_command_is_decided_after_the_decision_that_it_belongs_to() -> None:
    told: list[str] = []

    def start(job: AgentJob) -> subprocess.Popen[bytes]:
        told.append(job.hostname)
        raise OSError

    jobs = [replace(JOB, hostname=host, workers=()) for host in ("red", "blue")]
    executor = executor_of(Agents(start, job_by_host(jobs)), io.StringIO())
    Supervisor(Twice(), executor, log=told.append).run()
    assert told[:5] == ["red", "blue", "HostLost", "HostLost", "HostsGone"]
