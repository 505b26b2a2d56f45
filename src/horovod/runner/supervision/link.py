"""The launcher's end of one agent: a process with three pipes, local or through ssh.

What a login script of the host writes to stdout before the agent speaks counts as a complaint.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import subprocess
from functools import partial
from typing import IO, TYPE_CHECKING, Protocol

from horovod.runner.output.lines import Tail
from horovod.runner.protocol.frames import (
    READY_MARK,
    WINDOW_BYTES,
    Decoder,
    Frame,
    FrameError,
    Kind,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.protocol.invitation import Endpoint

_READ_BYTES = 256 * 1024
_MAX_PREAMBLE_BYTES = 64 * 1024
# Less is not worth a frame that says that it was taken.
_ACKNOWLEDGED_BYTES = WINDOW_BYTES // 4


class AgentProcess(Protocol):
    """Process of an agent, the ssh process that leads to it, or an object that acts as one."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """Takes frames; unbuffered."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """Brings frames."""

    @property
    def stderr(self) -> IO[bytes] | None:
        """Brings complaints."""

    @property
    def pid(self) -> int:
        """ID of the process on this machine; 0 for none."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises ``subprocess.TimeoutExpired`` if it goes on for longer."""

    def kill(self) -> None:
        """Ends it at once."""


class AgentLink:
    """Sends frames to an agent and reads what it reports. Belongs to one thread.

    Args:
        job: of the agent's host.
        process: the agent, or the ssh that leads to it, with pipes for stdin, stdout and stderr.
        selector: watches the pipes; the data of their keys is called with those that are ready.
        serve: called with this link and the pipe.

    Attributes:
        job: of the agent's host.
        hostname: of the agent's host.
        open: whether the agent still holds its end.
        done: whether it said that no process of the job is left.
        agent_pid: as it said itself; 0 before.
        masters: by endpoint of the store that it reached, its own address and port for rank 0.
        closed: whether its pipes are.
    """

    def __init__(
        self,
        job: AgentJob,
        process: AgentProcess,
        selector: selectors.BaseSelector,
        serve: Callable[[AgentLink, object], None],
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.job = job
        self.hostname = job.hostname
        self.open = True
        self.done = False
        self.agent_pid = 0
        self.masters: dict[Endpoint, tuple[str, int]] = {}
        self.closed = False
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._selector = selector
        self._serve = partial(serve, self)
        self._decoder = Decoder()
        self._complaints = Tail()
        self._preamble: bytearray | None = bytearray()
        self._outgoing = bytearray()
        self._owed = 0
        with contextlib.suppress(OSError):  # the user has no more memory for pipes
            fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, WINDOW_BYTES)
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stderr.fileno(), False)
        selector.register(self._stdout, selectors.EVENT_READ, self._serve)
        selector.register(self._stderr, selectors.EVENT_READ, self._serve)

    @property
    def pid(self) -> int:
        """ID of the process that was started on this machine."""
        return self._process.pid

    def complaints(self) -> tuple[str, ...]:
        """The last lines that the agent itself, not a rank, wrote to stderr."""
        if self._preamble:
            self._complaints.feed(bytes(self._preamble))
            self._preamble = bytearray()
        with contextlib.suppress(OSError, ValueError):  # nothing to read now, or closed
            while data := os.read(self._stderr.fileno(), _READ_BYTES):
                self._complaints.feed(data)
        return self._complaints.lines()

    def send(self, kind: Kind, payload: bytes = b"", worker: int = -1) -> None:
        """Queues a frame for the agent; an agent that is gone is no error here."""
        if self.open:
            self._outgoing += encode(kind, worker, payload)
            self._flush()

    def owe(self, num_bytes: int) -> bool:
        """Counts output that came; returns whether it is time to :meth:`acknowledge` it."""
        self._owed += num_bytes
        return self._owed >= _ACKNOWLEDGED_BYTES

    def acknowledge(self) -> None:
        """Tells the agent that its output was taken, so that more may come."""
        if self._owed:
            self.send(Kind.TAKEN, b"%d" % self._owed)
            self._owed = 0

    def _flush(self) -> None:
        try:
            del self._outgoing[: os.write(self._stdin.fileno(), self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()  # its death shows as the end of its stdout
        watched = self._stdin in self._selector.get_map()
        if self._outgoing and not watched:
            self._selector.register(self._stdin, selectors.EVENT_WRITE, self._serve)
        elif watched and not self._outgoing:
            self._selector.unregister(self._stdin)

    def on_ready(self, pipe: object) -> Iterator[Frame]:
        """Serves a pipe that the selector reported.

        Args:
            pipe: the file object of the selector's key.

        Yields:
            The frames that became complete.

        Raises:
            FrameError: what arrived is not from an agent.
        """
        if pipe is self._stdin:
            self._flush()
            return
        pipe = self._stdout if pipe is self._stdout else self._stderr
        try:
            data = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._selector.unregister(pipe)
            self.open = self.open and pipe is not self._stdout
        elif pipe is self._stderr:
            self._complaints.feed(data)
        else:
            yield from self._decoder.feed(self._without_preamble(data))

    def _without_preamble(self, data: bytes) -> bytes:
        """The part of what arrived that comes from the agent."""
        if self._preamble is None:
            return data
        searched = max(0, len(self._preamble) - len(READY_MARK))
        self._preamble += data
        begin = self._preamble.find(READY_MARK, searched)
        if begin < 0:
            if len(self._preamble) <= _MAX_PREAMBLE_BYTES:
                return b""
            raise FrameError(f"not an agent: {bytes(self._preamble[:80])!r}")
        self._complaints.feed(bytes(self._preamble[:begin]))
        frames, self._preamble = bytes(self._preamble[begin:]), None
        return frames

    def exit_code(self, timeout_s: float) -> int | None:
        """That of the process on this machine; None if it goes on for longer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def abandon(self) -> None:
        """Kills the agent if it runs on this machine, or else ssh, and no longer waits for it.

        The guard of an agent that is killed, which may have been stopped, ends what it left.
        """
        # Not for every job: psutil takes its time to load.
        from horovod.runner.system.descendants import is_child

        with contextlib.suppress(OSError):
            if not self.job.remote and is_child(self.agent_pid, self._process.pid):
                os.kill(self.agent_pid, signal.SIGKILL)
            else:
                self._process.kill()
        self.open = False

    def close(self) -> None:
        """Close the pipes."""
        self.closed = True
        for pipe in (self._stdin, self._stdout, self._stderr):
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe)
            with contextlib.suppress(OSError):
                pipe.close()
