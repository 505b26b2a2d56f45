"""One text from rank 0 to all ranks, over the PMI-1 protocol of Hydra (MPICH, Intel MPI).

Hydra lends each process a connected socket (``PMI_FD``) on which both sides speak lines of
``key=value``. The session is not ended here: MPI, should the program use it, begins it once more,
and Hydra would answer nobody after its end.
"""

from __future__ import annotations

import os
import socket
from contextlib import closing

from horovod.errors import StartError
from horovod.rendezvous.sockets import remaining_s

_KEY = "horovod-meeting"
_MAX_LINE_BYTES = 4096


def share(text: str | None, pmi_fd: int, deadline: float) -> str:
    """Publishes a text, or waits for it. All ranks must call this.

    Args:
        text: of rank 0; None on the others. Without spaces, less than 1000 characters.
        pmi_fd: the connection; stays open.
        deadline: in ``time.monotonic()``.

    Returns:
        The text of rank 0.

    Raises:
        StartError: the connection is none, broke, or did not answer in time.
    """
    try:
        blocking = os.get_blocking(pmi_fd)
        try:
            with closing(socket.socket(fileno=os.dup(pmi_fd))) as sock:
                return _Session(sock, deadline).share(text)
        finally:
            # A deadline makes the connection non-blocking, for MPI as well.
            os.set_blocking(pmi_fd, blocking)
    except OSError as error:
        raise StartError(f"the process manager of mpirun did not help: {error}") from error


class _Session:
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def share(self, text: str | None) -> str:
        self._ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
        space = self._ask("cmd=get_my_kvsname", "my_kvsname").get("kvsname", "")
        if text is not None:
            self._ask(f"cmd=put kvsname={space} key={_KEY} value={text}", "put_result")
        self._ask("cmd=barrier_in", "barrier_out")
        answer = self._ask(f"cmd=get kvsname={space} key={_KEY}", "get_result")
        if "value" not in answer:
            raise StartError("mpirun did not pass on what rank 0 published")
        return answer["value"]

    def _ask(self, request: str, command: str) -> dict[str, str]:
        self._sock.settimeout(remaining_s(self._deadline))
        self._sock.sendall(request.encode("ascii") + b"\n")
        line = self._read_line()
        answer = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if answer.get("cmd") != command or answer.get("rc", "0") != "0":
            raise StartError(f"mpirun answered {line!r} to {request.split()[0]!r}")
        return answer

    def _read_line(self) -> str:
        """Byte by byte: what follows may be meant for MPI."""
        line = bytearray()
        while not line.endswith(b"\n"):
            self._sock.settimeout(remaining_s(self._deadline))
            byte = self._sock.recv(1)
            if not byte or len(line) >= _MAX_LINE_BYTES:
                raise ConnectionResetError("the connection to mpirun was closed")
            line += byte
        return line.decode("ascii", "replace").strip()
