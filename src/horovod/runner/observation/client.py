"""A viewer's connection to a job."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from horovod.runner.observation.door import connect
from horovod.runner.observation.subscriber import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

# A job of thousands of ranks has views of some MiB.
_MOST_MESSAGE_BYTES = 256 << 20


class StreamClient:
    """Reads the stream of a job; questions may be asked from another thread.

    Args:
        key: of the job; empty for the only one of this user on this host.

    Attributes:
        key: of the job.

    Raises:
        UsageError: there is no such job, or several could be meant.
    """

    def __init__(self, key: str = "") -> None:
        self._sock, self.key = connect(key)
        self._sock.settimeout(None)
        self._lock = threading.Lock()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield views and answers until the job ends, or :meth:`close` is called."""
        with self._sock.makefile("rb") as lines:
            while True:
                try:
                    line = lines.readline(_MOST_MESSAGE_BYTES)
                except (OSError, ValueError):
                    return
                if not line.endswith(b"\n"):
                    return
                yield json.loads(line)

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request; its answer is one of the messages.

        Raises:
            OSError: the job has ended.
        """
        with self._lock:
            self._sock.sendall(encode(request))

    def close(self) -> None:
        """End the connection; idempotent."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
