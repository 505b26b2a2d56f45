"""Starts the process that serves those who watch a job of which no launcher of ours serves them.

The process reads the store of rank 0 as a launcher would, so it needs nothing from the ranks but
their reports. It ends with this one.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from horovod._job.environment import python_command
from horovod._job.python_path import with_horovod_on_path
from horovod._rendezvous.secret import secret_of
from horovod._settings.config import inherited_environment
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._settings.config import Config

_MODULE = "horovod.runner.starting.beside_rank"
_READY_S = 60.0
_END_S = 12.0
_READ_BYTES = 65536


class ShowingProcess:
    """Serves the stream of the job until :meth:`close`, or the end of this process.

    Args:
        config: of rank 0, with the store in this process.
        hosts: of each rank.

    Raises:
        StartError: what the user asked for cannot be served.
    """

    def __init__(self, config: Config, hosts: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            python_command(_MODULE),
            env=with_horovod_on_path(inherited_environment()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process
        )
        try:
            self._tell(config, hosts)
            problem = self._answer()
        except BaseException:
            self._process.kill()
            self.close()
            raise
        if problem:
            self.close()
            raise StartError(problem)

    def _tell(self, config: Config, hosts: Sequence[str]) -> None:
        assert self._process.stdin is not None
        told = {
            "address": config.rendezvous_addr,
            "port": config.rendezvous_port,
            "secret": secret_of(config).hex(),
            "hosts": list(hosts),
            "command": sys.orig_argv[:100],
            "pid": os.getpid(),
        }
        try:
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # its answer, or its traceback on stderr, says why
            return

    def _answer(self) -> str:
        """Return what the process says against what was asked for; empty if it serves."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + _READY_S
        received = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return f"the process that shows the job did not start within {_READY_S:g} s"
                data = os.read(self._process.stdout.fileno(), _READ_BYTES)
                if not data:
                    return "the process that shows the job failed; its error is on stderr"
                received += data
        return str(json.loads(received)["problem"])

    def close(self) -> None:
        """Let viewers see the end of the job; idempotent."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with suppress(
                OSError
            ):  # a forked child may keep the pipe open, so its end says nothing
                stdin.write(b"end\n")
                stdin.flush()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def is_asked_for(config: Config) -> bool:
    """Return whether the user, or variables of others, ask for what the job reports."""
    if config.asks_to_watch or "kubeflow" in config.exports:
        return True
    return "otlp" in config.exports and find_spec("opentelemetry") is not None


def hosts_of(rank_names: Sequence[str]) -> list[str]:
    """Return the hosts of ranks named ``host:pid``. Pure."""
    return [name.rpartition(":")[0] for name in rank_names]
