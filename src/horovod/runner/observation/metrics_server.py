"""Serves metrics to those who know its token, on 127.0.0.1.

Everybody on this host can connect. So there are few connections at a time, each has a short time
for its whole request, and nothing is kept of what comes before the token.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hmac
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_CONNECTIONS = 16
# From the connection to the end of the answer.
REQUEST_S = 10.0
_HEAD_BYTES = 8192
_TYPE = "text/plain; version=0.0.4"


class MetricsServer:
    """An endpoint on a thread of its own.

    Args:
        port: on 127.0.0.1; 0 for one that the system chooses.
        token: what a client has to send.
        body: returns what it gets.
        request_s: how long a connection may last.
        option: that names the port, for the error.

    Attributes:
        port: where it listens.

    Raises:
        UsageError: the port cannot be used.
    """

    def __init__(
        self,
        port: int,
        token: str,
        body: Callable[[], str],
        request_s: float = REQUEST_S,
        option: str = "--prometheus",
    ) -> None:
        self._token = f"Bearer {token}".encode()
        self._body = body
        self._request_s = request_s
        # The oldest comes first.
        self._connections: dict[asyncio.StreamWriter, None] = {}
        self._loop = asyncio.new_event_loop()
        listening = asyncio.start_server(self._serve, "127.0.0.1", port, limit=_HEAD_BYTES)
        try:
            self._server = self._loop.run_until_complete(listening)
        except OSError as error:
            self._loop.close()
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise UsageError(f"{option} {port}: {reason}") from None
        self.port = int(self._server.sockets[0].getsockname()[1])
        name = "horovod-metrics"
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more; idempotent."""
        if self._loop.is_closed():
            return
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        with suppress(TimeoutError, concurrent.futures.TimeoutError):
            ending.result(self._request_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self._request_s)
        if not self._thread.is_alive():
            self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        answering = asyncio.all_tasks() - {asyncio.current_task()}
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.transport.abort()
        self._connections[writer] = None
        try:
            await asyncio.wait_for(self._answer(reader, writer), self._request_s)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            writer.transport.abort()
        finally:
            self._connections.pop(writer, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        request, *fields = head.split(b"\r\n")
        words = request.split()
        given = b""
        for field in fields:
            name, _, value = field.partition(b":")
            if name.strip().lower() == b"authorization":
                given = value.strip()
        status, body = "200 OK", b""
        if not hmac.compare_digest(given, self._token):
            status = "401 Unauthorized"
        elif words[:1] != [b"GET"]:
            status = "405 Method Not Allowed"
        elif words[1:2] != [b"/metrics"]:
            status = "404 Not Found"
        else:
            body = self._body().encode()
        answer = f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{answer}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()
        with suppress(OSError):
            writer.write_eof()
        await reader.read(1)  # until the client has closed, too, so that it gets all
