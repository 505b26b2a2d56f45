"""One process that watches a job, as the launcher sees it. Nothing here waits."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

# Requests are short. Whoever sends more without the end of a line is no viewer.
_MOST_REQUEST_BYTES = 4096
_MOST_ANSWERS = 8


class Subscriber:
    """Gets the newest view when it has taken the last one; those between are dropped.

    So a slow viewer costs at most two views and a few answers of memory.

    Args:
        sock: connected to it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._descriptor = sock.fileno()
        self._under_way = memoryview(b"")
        self._newest = b""
        self._answers: list[bytes] = []
        self._received = b""
        self.is_open = True

    def fileno(self) -> int:
        """Return the descriptor, for a selector, which must forget it after :meth:`close`, too."""
        return self._descriptor

    @property
    def wants_to_write(self) -> bool:
        """Whether something is to be sent when the socket has room."""
        return bool(self._under_way or self._newest or self._answers)

    def show(self, text: bytes) -> None:
        """Send a view; replaces one that has not begun to leave."""
        self._newest = text
        self.write()

    def answer(self, data: dict[str, Any]) -> None:
        """Send an answer; the oldest one is dropped if too many wait."""
        self._answers = [*self._answers[1 - _MOST_ANSWERS :], encode(data)]
        self.write()

    def write(self) -> None:
        """Send as much as the socket takes."""
        with suppress(BlockingIOError):
            try:
                while self.wants_to_write:
                    if not self._under_way:
                        self._under_way = memoryview(self._next())
                    num_sent = self._sock.send(self._under_way)
                    self._under_way = self._under_way[num_sent:]
            except BlockingIOError:
                raise
            except OSError:
                self.close()

    def _next(self) -> bytes:
        if self._answers:
            return self._answers.pop(0)
        newest, self._newest = self._newest, b""
        return newest

    def read(self) -> list[dict[str, Any]]:
        """Return the requests that have arrived; closes if the viewer is gone or talks nonsense."""
        try:
            data = self._sock.recv(_MOST_REQUEST_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        if not data or len(self._received) > _MOST_REQUEST_BYTES:
            self.close()
            return []
        try:
            requests = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            self.close()
            return []
        return [each for each in requests if isinstance(each, dict)]

    def close(self) -> None:
        """Let go of the viewer. Idempotent."""
        self.is_open = False
        self._sock.close()


def encode(data: dict[str, Any]) -> bytes:
    """Return a message as one line."""
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"
