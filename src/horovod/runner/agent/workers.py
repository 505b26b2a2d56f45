"""Starts workers, and explains why a command cannot be started."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shlex
import signal
import subprocess
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from horovod.runner.protocol.frames import Kind
from horovod.runner.system import processes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.protocol.agent_job import AgentJob, WorkerJob


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
# A user has 64 MiB for pipes on a host, beyond which all further ones are tiny.
_PIPE_BYTES = 256 * 1024
_MOST_LARGE_PIPES = 16


@dataclass
class Stream:
    """The pipe from stdout or stderr of a worker; None after its end."""

    kind: Kind
    worker: int
    pipe: IO[bytes] | None


@dataclass
class Worker:
    """A worker that was started."""

    worker: int
    process: subprocess.Popen[bytes]
    streams: tuple[Stream, Stream]


def start_worker(worker: WorkerJob, job: AgentJob, env: Mapping[str, str]) -> Worker:
    """Starts a command in a session of its own; the kernel kills it if the agent dies.

    Args:
        worker: the command, and who it is in the messages about it.
        job: the working directory.
        env: all variables of the worker.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: see :func:`explain_start_error`.
    """
    agent_pid = os.getpid()
    # preexec_fn is safe here: the agent has one thread.
    process = subprocess.Popen(
        worker.command,
        cwd=job.cwd,
        env=env,
        stdin=job.stdin if worker.rank == job.stdin_rank else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: processes.die_with_parent(signal.SIGKILL, agent_pid),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    for pipe in (process.stdout, process.stderr):
        os.set_blocking(pipe.fileno(), False)
        if len(job.workers) <= _MOST_LARGE_PIPES:
            with contextlib.suppress(OSError):  # the user has no more memory for pipes
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    streams = (
        Stream(Kind.STDOUT, worker.worker, process.stdout),
        Stream(Kind.STDERR, worker.worker, process.stderr),
    )
    return Worker(worker.worker, process, streams)


def explain_start_error(error: Exception, command: Sequence[str], cwd: str) -> tuple[int, str]:
    """Returns the exit code that a shell would give, and what went wrong."""
    name = command[0]
    if not isinstance(error, OSError):
        return 1, str(error)
    if error.filename == cwd and name != cwd:
        return 1, f"cannot enter the working directory {cwd}: {error.strerror}"
    hint = f"; write 'python {name}'" if name.endswith(".py") else ""
    if _ASSIGNMENT.match(name):
        hint = f"; to set a variable, write: env {shlex.join(command):.200}"
    if error.errno == errno.ENOENT:
        return 127, f"the command {name!r} was not found{hint}"
    if error.errno in (errno.EACCES, errno.EISDIR, errno.ENOTDIR):
        return 126, f"the command {name!r} cannot be executed: {error.strerror}{hint}"
    if error.errno == errno.ENOEXEC:
        return 126, f"{name!r} is not a program: does its first line lack '#!'?{hint}"
    return 1, f"the command {name!r}: {error.strerror}"
