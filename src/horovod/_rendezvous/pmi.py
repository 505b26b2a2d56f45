"""One text from rank 0 to all ranks, over the PMI-1 protocol of Hydra (MPICH, Intel MPI).

Hydra lends each process a connected socket (``PMI_FD``) on which both sides speak lines of
``key=value``. MPI, should the program use it later, begins the session once more; so it has to stay
open, as Hydra answers nobody after its end. But a process that goes before the end of its session
has crashed in Hydra's eyes, which kills all others at once. So whoever shares a text must end the
session when the process ends, unless MPI does.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from horovod._rendezvous.sockets import remaining_s
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEY = "horovod-bootstrap"
_MAX_LINE_BYTES = 4096
_END_TIMEOUT_S = 5.0


class PmiSession:
    """The session of this process.

    Args:
        pmi_fd: the connection, which stays open.

    Raises:
        StartError: it is none.
    """

    def __init__(self, pmi_fd: int) -> None:
        try:
            # When the process ends, the number may stand for something else.
            self._sock = socket.socket(fileno=os.dup(pmi_fd))
        except OSError as error:
            raise _no_help(error) from error

    def share(self, text: str | None, deadline: float) -> str:
        """Publishes a text, or waits for it. All ranks must call this.

        Args:
            text: of rank 0; None on the others. Without spaces, less than 1000 characters.
            deadline: in ``time.monotonic()``.

        Returns:
            The text of rank 0.

        Raises:
            StartError: the connection broke, or did not answer in time.
        """
        try:
            with self._blocking_afterwards():
                return self._share(text, deadline)
        except OSError as error:
            raise _no_help(error) from error

    def end(self) -> None:
        """Says that this process ends as it should. Nobody may use PMI after that.

        An mpirun that is gone is no reason to complain.
        """
        with suppress(OSError, StartError):
            # A process that does not wait for the answer is gone before Hydra can write it.
            self._ask("cmd=finalize", "finalize_ack", time.monotonic() + _END_TIMEOUT_S)

    def close(self) -> None:
        """Leaves the session to MPI, or to its fate. Idempotent."""
        self._sock.close()

    @contextmanager
    def _blocking_afterwards(self) -> Iterator[None]:
        """A deadline makes the connection non-blocking, for MPI as well."""
        blocking = os.get_blocking(self._sock.fileno())
        try:
            yield
        finally:
            os.set_blocking(self._sock.fileno(), blocking)

    def _share(self, text: str | None, deadline: float) -> str:
        self._ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", deadline)
        answer = self._ask("cmd=get_my_kvsname", "my_kvsname", deadline)
        space = answer.get("kvsname", "")
        if text is not None:
            self._ask(f"cmd=put kvsname={space} key={_KEY} value={text}", "put_result", deadline)
        self._ask("cmd=barrier_in", "barrier_out", deadline)
        answer = self._ask(f"cmd=get kvsname={space} key={_KEY}", "get_result", deadline)
        if "value" not in answer:
            raise StartError("mpirun did not pass on what rank 0 published")
        return answer["value"]

    def _ask(self, request: str, command: str, deadline: float) -> dict[str, str]:
        self._sock.settimeout(remaining_s(deadline))
        self._sock.sendall(request.encode("ascii") + b"\n")
        line = self._read_line(deadline)
        answer = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if answer.get("cmd") != command or answer.get("rc", "0") != "0":
            raise StartError(f"mpirun answered {line!r} to {request.split()[0]!r}")
        return answer

    def _read_line(self, deadline: float) -> str:
        """Byte by byte: what follows may be meant for MPI."""
        line = bytearray()
        while not line.endswith(b"\n"):
            self._sock.settimeout(remaining_s(deadline))
            byte = self._sock.recv(1)
            if not byte or len(line) >= _MAX_LINE_BYTES:
                raise ConnectionResetError("the connection to mpirun was closed")
            line += byte
        return line.decode("ascii", "replace").strip()


def _no_help(error: OSError) -> StartError:
    return StartError(f"the process manager of mpirun did not help: {error}")
