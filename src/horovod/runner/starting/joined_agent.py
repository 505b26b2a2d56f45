"""The agent of a host that joined by itself, in the launcher: like a process with three pipes."""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod.errors import StartError
from horovod.runner.protocol.frames import Decoder, FrameError, encode
from horovod.runner.protocol.joining import Receiver, Sender, Session, for_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.runner.protocol.joining import Store

_READ_BYTES = 256 * 1024
_BROKEN = 255  # what ssh says, too, of a connection that was lost


class JoinedAgent:
    """Two threads between pipes and the store of the job.

    Args:
        store: of the job.
        session: of the agent; the host is told to start it.
        host: its name in the job.
        on_end: called with the host and this object once nothing more comes from the agent.

    Attributes:
        visit: that the agent belongs to.
        stdin, stdout, stderr: the ends of pipes that the launcher holds.
        pid: none on this machine.

    Raises:
        OSError: no pipe can be made.
    """

    pid = 0

    def __init__(
        self,
        store: Store,
        session: Session,
        host: str,
        on_end: Callable[[str, JoinedAgent], None],
    ) -> None:
        self._store = store
        self._session = session
        self.visit = session.visit
        self._host = host
        self._on_end = on_end
        self._in, self._out, error = os.pipe(), os.pipe(), os.pipe()
        self.stdin = os.fdopen(self._in[1], "wb", buffering=0)
        self.stdout = os.fdopen(self._out[0], "rb", buffering=0)
        self.stderr = os.fdopen(error[0], "rb", buffering=0)
        os.close(error[1])  # what the agent complains about is seen on its host
        self._code = 0
        self._ended = threading.Event()
        with suppress(StartError):  # the store was closed; then both threads end at once
            store.set(session.wanted_key, b"")
        for work, name in ((self._pass_on, "to"), (self._take, "from")):
            threading.Thread(target=work, name=f"horovod-{name}-{host}", daemon=True).start()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the agent; 0 if it ended by itself.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("agent", timeout or 0.0)
        return self._code

    def kill(self) -> None:
        """Breaks the connection, upon which the host ends its agent."""
        self._code = _BROKEN
        with suppress(StartError):  # then the store is closed, and with it all sessions
            self._store.set(self._session.broken_key, b"")

    def _pass_on(self) -> None:
        """Takes frames for the agent out of the pipe, until the launcher closes it."""
        decoder, sender = Decoder(), Sender(self._store, self._session.to_agent)
        with os.fdopen(self._in[0], "rb", buffering=0) as pipe, suppress(StartError, OSError):
            while data := os.read(pipe.fileno(), _READ_BYTES):
                frames = map(for_host, decoder.feed(data))
                if parts := [encode(frame.kind, frame.worker, frame.payload) for frame in frames]:
                    sender.send(b"".join(parts))
            sender.send(b"")

    def _take(self) -> None:
        """Writes what the agent says into the pipe."""
        receiver = Receiver(self._store, self._session, self._session.to_launcher)
        try:
            with os.fdopen(self._out[1], "wb") as pipe:
                while data := receiver.receive():
                    pipe.write(data)
                    pipe.flush()
        except (StartError, FrameError, OSError):
            self._code = _BROKEN
        finally:
            self._ended.set()
            self._on_end(self._host, self)
