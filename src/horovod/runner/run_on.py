"""Runs a module of Horovod on a host, with a question on its stdin and an answer on its stdout."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from horovod.errors import StartError
from horovod.runner import local
from horovod.runner.environment import python_command, with_horovod_on_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# A login script may write to stdout as well; what stands behind this mark is the answer.
_MARK = "horovod-answer: "
MAX_ANSWER_BYTES = 1024 * 1024


class HostError(StartError):
    """A host did not answer; the message says why, without its name."""


def start_here(environ: Mapping[str, str]) -> Callable[[str, str], subprocess.Popen[bytes]]:
    """A starter of modules on the hosts that are this machine.

    Args:
        environ: the variables of the process.
    """

    def start(host: str, module: str) -> subprocess.Popen[bytes]:
        if not local.is_local(host):
            raise HostError("it is not this machine; this version starts on this machine only")
        return subprocess.Popen(
            python_command(module),
            env=with_horovod_on_path(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    return start


def run_on(
    host: str,
    module: str,
    payload: Mapping[str, Any],
    start: Callable[[str, str], subprocess.Popen[bytes]],
    timeout_s: float,
) -> dict[str, Any]:
    """Asks a module on a host.

    Args:
        host: as the user wrote it.
        module: calls :func:`read_question` and :func:`write_answer`.
        payload: the question, as JSON; it may hold a secret, since it goes over stdin.
        start: creates the process from host and module, with pipes and in a session of its own.
        timeout_s: until the answer must be there.

    Raises:
        HostError: the process cannot be started, ended with an error, did not answer in time, or
            said something else.
    """
    try:
        process = start(host, module)
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
    return _answer_in(out, err, process.returncode)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _answer_in(out: bytes, err: bytes, code: int) -> dict[str, Any]:
    lines = out[-MAX_ANSWER_BYTES:].decode(errors="replace").splitlines()
    for line in reversed(lines):
        if line.startswith(_MARK):
            with contextlib.suppress(ValueError):
                answer = json.loads(line.removeprefix(_MARK))
                if isinstance(answer, dict):
                    return answer
    said = [line for line in err.decode(errors="replace").splitlines() if line.strip()]
    why = f": {said[-1][:300]}" if said else ""
    raise HostError(f"it ended with code {code} and gave no answer{why}")


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
