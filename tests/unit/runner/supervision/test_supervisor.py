"""The launcher's loop with agents that misbehave."""

from __future__ import annotations

import io
import selectors
import subprocess
import time
from typing import TYPE_CHECKING

from horovod.runner.output.console import Console
from horovod.runner.output.output import Output
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
from horovod.runner.protocol.frames import Kind, encode
from horovod.runner.supervision.link import AgentLink
from horovod.runner.supervision.outcome import Outcome
from horovod.runner.supervision.supervisor import Supervisor

if TYPE_CHECKING:
    import pytest

JOB = AgentJob(
    "somewhere", "/", {}, (WorkerJob(0, 0, {}, ("x",)), WorkerJob(1, 1, {}, ("x",))), b"s" * 32
)


def supervise(script: str, start_timeout_s: float = 30.0) -> tuple[Outcome, str]:
    """Runs a job whose agent is a shell script."""

    def start(job: AgentJob) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(["sh", "-c", script], stdin=pipe, stdout=pipe, stderr=pipe)

    stdout = io.StringIO()
    supervisor = Supervisor(
        [JOB],
        start,
        Output(Console(stdout, io.StringIO())),
        start_timeout_s=start_timeout_s,
        log=lambda line: None,
        announce=lambda line: None,
    )
    began_s = time.monotonic()
    outcome = supervisor.run()
    assert time.monotonic() - began_s < 10
    return outcome, stdout.getvalue()


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
    outcome, _ = supervise("echo asking for a password >&2; exec sleep 100", 0.3)
    assert outcome.exit_code == 1
    assert "somewhere: no agent came up there within 0.3 s" in outcome.message
    assert "asking for a password" in outcome.message


def test_an_agent_that_ends_without_a_word() -> None:
    outcome, _ = supervise("echo no such module >&2; exit 3")
    assert outcome.exit_code == 1
    assert "cannot start on host somewhere: it ended" in outcome.message
    assert "no such module" in outcome.message


def test_an_agent_that_is_something_else() -> None:
    outcome, _ = supervise("echo 'Welcome to this host!'; exec sleep 100", 0.5)
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


def test_an_agent_both_of_whose_pipes_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the first one closes the link, although the selector has found the second one."""
    with selectors.DefaultSelector() as selector:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            ["sh", "-c", "echo bad >&2"], stdin=pipe, stdout=pipe, stderr=pipe
        )
        link = AgentLink(JOB, process, selector)
        process.wait()
        ready = [key for key, _ in selector.select(10)]
        while len(ready) < 2:
            ready = [key for key, _ in selector.select(10)]
        ended: list[AgentLink] = []
        supervisor = Supervisor(
            [], no_agent, Output(Console(io.StringIO(), io.StringIO())),
            start_timeout_s=1, log=print, announce=print,
        )  # fmt: skip

        def end(link: AgentLink) -> None:
            ended.append(link)
            link.close(0.0)

        monkeypatch.setattr(supervisor, "_on_end_of", end)
        stdout_first = sorted(ready, key=lambda key: key.fileobj is not process.stdout)
        for key in stdout_first:
            supervisor._serve(link, key.fileobj)
        assert ended == [link]


def no_agent(job: AgentJob) -> subprocess.Popen[bytes]:
    raise OSError("none is started")
