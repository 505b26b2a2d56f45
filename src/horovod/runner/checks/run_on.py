"""Runs a module of Horovod on a host, with a question on its stdin and an answer on its stdout."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod._job.environment import python_command
from horovod._job.python_path import with_horovod_on_path
from horovod.errors import StartError
from horovod.runner.placing.hosts import Host
from horovod.runner.starting import ssh

# A login script may write to stdout as well; what stands behind this mark is the answer.
_MARK = "horovod-answer: "
MAX_ANSWER_BYTES = 1024 * 1024

StartModule = Callable[[Host, bool, str], "subprocess.Popen[bytes]"]
"""Creates a process from a host, whether it is another machine, and the name of a module."""


class HostError(StartError):
    """A host did not answer; the message says why, without its name."""


def launcher(environ: Mapping[str, str], options: ssh.SshOptions) -> StartModule:
    """Starts modules here, or through ssh.

    Args:
        environ: the variables of the process, or of ssh.
        options: how to log in on other hosts.
    """

    def start(host: Host, is_remote: bool, module: str) -> subprocess.Popen[bytes]:
        if is_remote:
            return ssh.start(host.name, host.user, options, module, environ)
        return subprocess.Popen(
            python_command(module),
            env=with_horovod_on_path(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    return start


def explain_here(code: int, lines: Sequence[str]) -> str:
    """Return why a module that ran on this machine gave no answer."""
    why = f": {lines[-1][:300]}" if lines else ""
    return f"it ended with code {code} and gave no answer{why}"


def run_on(
    start: Callable[[str], subprocess.Popen[bytes]],
    module: str,
    payload: Mapping[str, Any],
    timeout_s: float,
    explain: Callable[[int, Sequence[str]], str] = explain_here,
) -> dict[str, Any]:
    """Asks a module on a host.

    Args:
        start: creates the process from the name of the module, with pipes and in a session of its
            own.
        module: calls :func:`read_question` and :func:`write_answer`.
        payload: the question, as JSON; it may hold a secret, since it goes over stdin.
        timeout_s: until the answer must be there.
        explain: says why there is none, from the exit code and the lines on stderr.

    Raises:
        HostError: the process cannot be started, ended with an error, did not answer in time, or
            said something else.
    """
    try:
        process = start(module)
    except OSError as error:
        raise HostError(f"cannot start {module}: {error.strerror or error}") from None
    try:
        out, err = process.communicate(json.dumps(payload).encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        raise HostError(f"no answer within {timeout_s:g} s") from None
    except BaseException:
        _kill(process)
        raise
    answer = _answer_in(out)
    if answer is None:
        said = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
        raise HostError(explain(process.returncode, said))
    return answer


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _answer_in(out: bytes) -> dict[str, Any] | None:
    lines = out[-MAX_ANSWER_BYTES:].decode(errors="replace").splitlines()
    for line in reversed(lines):
        if line.startswith(_MARK):
            with contextlib.suppress(ValueError):
                answer = json.loads(line.removeprefix(_MARK))
                if isinstance(answer, dict):
                    return answer
    return None


def read_question(stdin: Any) -> dict[str, Any]:
    """On the host: the payload of :func:`run_on`."""
    question = json.loads(stdin.read())
    if not isinstance(question, dict):
        raise ValueError(f"not a question: {question!r:.60}")
    return question


def write_answer(stdout: Any, answer: Mapping[str, Any]) -> None:
    """On the host: what :func:`run_on` returns."""
    stdout.write(f"{_MARK}{json.dumps(answer)}\n")
    stdout.flush()
