"""The job's key-value store: one thread, for the process that starts the job."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import horovod
from horovod._rendezvous import messages
from horovod._rendezvous.answers import Answers
from horovod._rendezvous.framing import GIB, FrameError, FrameReader, FrameWriter
from horovod._rendezvous.gate import HANDSHAKE_TIMEOUT_S, MAX_PENDING, Admitted, Door, Gate
from horovod._rendezvous.loop import READ, WRITE, EventLoop
from horovod._rendezvous.secret import check_secret
from horovod._rendezvous.sockets import (
    SILENCES,
    close_quietly,
    join_small,
    listen_tcp,
    set_tcp_options,
    watch_closely,
)
from horovod._rendezvous.table import Found, Table, Waiter
from horovod._rendezvous.versions import VERSION_KEY
from horovod.errors import StartError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from horovod._rendezvous.handshake import Hello

# What a call from the own process waits at most for the store's thread.
_TURN_TIMEOUT_S = 60.0

T = TypeVar("T")


class StoreServer:
    """A key-value store that serves only who proves to know the job's secret.

    Example:
        >>> from horovod._rendezvous import StoreClient, StoreServer, make_secret
        >>> secret = make_secret()
        >>> with StoreServer(secret) as server:
        ...     with StoreClient(server.address, server.port, secret) as client:
        ...         client.set("greeting", b"hello")
        ...     server.get("greeting", timeout_s=1.0)
        b'hello'

    Args:
        secret: of the job, 32 bytes.
        address: the one address of this host where it listens.
        port: at each address; 0 lets the system choose.
        further_addresses: of this host, where it listens until :meth:`narrow` is called, for hosts
            of which nobody knows yet which address they can reach.
        max_message_bytes: the largest message, and so the largest value, that is accepted.
        handshake_timeout_s: seconds that a connection may take to prove itself.
        max_pending: connections that may be unproven at a time.

    Raises:
        StartError: it cannot listen there, or the secret has the wrong size.
    """

    def __init__(
        self,
        secret: bytes,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        further_addresses: Sequence[str] = (),
        max_message_bytes: int = GIB,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        max_pending: int = MAX_PENDING,
    ) -> None:
        check_secret(secret)
        listeners = [listen_tcp(address, port)]
        try:
            listeners += [
                listen_tcp(further_address, port) for further_address in further_addresses
            ]
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        self.endpoints = tuple(_endpoint(listener) for listener in listeners)
        self.address, self.port = self.endpoints[0]
        self._max_message_bytes = max_message_bytes
        self._table = Table()
        self._table.set(VERSION_KEY, horovod.__version__.encode())
        self._answers = Answers()
        self._connections: set[_Connection] = set()
        self._futures: set[Future[Any]] = set()
        self._unused: list[Future[None]] = []
        try:
            self._loop = EventLoop("horovod-store", self._end)
        except OSError:
            for listener in listeners:
                listener.close()
            raise
        self._gate = Gate(
            self._loop,
            [Door(listener, _is_for_store, _prepare) for listener in listeners],
            secret,
            self._welcome,
            handshake_timeout_s=handshake_timeout_s,
            max_pending=max_pending,
        )
        self._loop.add_timer(self._table)
        self._loop.start()

    def set(self, key: str, value: bytes) -> None:
        """Stores a value; as :meth:`StoreClient.set`, from this process."""
        messages.check_key(key)

        def store(future: Future[None]) -> None:
            self._table.set(key, value)
            future.set_result(None)

        self._call(store)

    def add(self, key: str, value: bytes) -> bytes | None:
        """Stores a value if the key is new; as :meth:`StoreClient.add`, from this process."""
        messages.check_key(key)

        def add(future: Future[bytes | None]) -> None:
            future.set_result(self._table.add(key, value))

        return self._call(add)

    def append(self, prefix: str, value: bytes) -> int:
        """Stores a value at the end of a list; as :meth:`StoreClient.append`, from this process."""
        messages.check_key(prefix)

        def append(future: Future[int]) -> None:
            future.set_result(self._table.append(prefix, value))

        return self._call(append)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits for a value; as :meth:`StoreClient.get`, from this process.

        Raises:
            StartError: the key did not appear in time, or the store was closed.
        """
        found = self.wait_all([key], timeout_s)
        if key not in found:
            raise StartError(f"{key!r} did not appear in the store within {timeout_s:g} s")
        return found[key]

    def try_get(self, key: str) -> bytes | None:
        """Returns the value, or None if the key does not exist."""
        return self.wait_all([key], 0.0).get(key)

    def delete(self, key: str) -> None:
        """Deletes one key, if it exists; as :meth:`StoreClient.delete`, from this process."""
        messages.check_key(key)

        def delete(future: Future[None]) -> None:
            self._table.delete(key)
            future.set_result(None)

        self._call(delete)

    def delete_prefix(self, prefix: str) -> int:
        """Deletes all keys that start with ``prefix`` and returns how many these were."""
        messages.check_key(prefix)

        def delete(future: Future[int]) -> None:
            future.set_result(self._table.delete_prefix(prefix))

        return self._call(delete)

    def wrong_secrets(self) -> dict[str, int]:
        """Return the noted numbers of connections with another job's secret, by origin."""

        def copy(future: Future[dict[str, int]]) -> None:
            future.set_result(dict(self._gate.wrong_secrets))

        return self._call(copy)

    def narrow(self, endpoint: tuple[str, int]) -> None:
        """Listens from now on at one endpoint only; connections that were made stay.

        Args:
            endpoint: address and port, one of ``endpoints``.
        """

        def keep(future: Future[None]) -> None:
            self._gate.keep(lambda door: _endpoint(door.sock) == endpoint)
            future.set_result(None)

        assert endpoint in self.endpoints
        self._call(keep)
        self.endpoints = (endpoint,)
        self.address, self.port = endpoint

    def wait_unused(self, timeout_s: float = messages.MAX_TIMEOUT_S) -> None:
        """Waits until no client is connected.

        Raises:
            StartError: some still are when the time is over, or the store was closed.
        """

        def wait(future: Future[None]) -> None:
            self._unused.append(future)
            self._tell_if_unused()

        self._call(wait, timeout_s)

    def close(self) -> None:
        """Closes every connection and joins the thread. Idempotent."""
        self._loop.close()

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def wait_all(self, keys: Sequence[str], timeout_s: float, stop_key: str = "") -> Found:
        """Waits for several values; as :meth:`StoreClient.wait_all`, from this process."""
        messages.check_keys(list(keys))
        timeout_s = messages.check_timeout(timeout_s)

        def wait(future: Future[Found]) -> None:
            now = time.monotonic()
            self._table.wait(keys, stop_key, now + timeout_s, now, future.set_result)

        return self._call(wait, timeout_s)

    def _call(self, work: Callable[[Future[T]], None], timeout_s: float = 0.0) -> T:
        """Has the store's thread fulfill a future."""
        future: Future[T] = Future()
        self._futures.add(future)
        try:
            self._loop.post(partial(work, future))
            return future.result(timeout_s + _TURN_TIMEOUT_S)
        except FutureTimeoutError:
            raise StartError("the store's thread does not answer") from None
        finally:
            self._futures.discard(future)

    def _welcome(self, admitted: Admitted) -> None:
        connection = _Connection(
            admitted, self._loop, self._table, self._answers, self._max_message_bytes, self._dropped
        )
        self._connections.add(connection)
        if silence_s := SILENCES.get(admitted.hello.purpose):
            with suppress(OSError):  # a connection that is broken already says so itself
                watch_closely(admitted.sock, silence_s)

    def _dropped(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._tell_if_unused()

    def _tell_if_unused(self) -> None:
        unused, self._unused = self._unused, []
        for future in unused:
            if self._connections:
                self._unused.append(future)
            elif not future.done():
                future.set_result(None)

    def _end(self, failure: BaseException | None) -> None:
        self._gate.close()
        for connection in list(self._connections):
            connection.drop()
        for future in [future for future in list(self._futures) if not future.done()]:
            future.set_exception(StartError(f"the store was closed: {failure or 'end of the job'}"))


class _Connection:
    """One authenticated client; lives on the store's thread."""

    def __init__(
        self,
        admitted: Admitted,
        loop: EventLoop,
        table: Table,
        answers: Answers,
        max_message_bytes: int,
        on_drop: Callable[[_Connection], None],
    ) -> None:
        self._sock = admitted.sock
        self._loop = loop
        self._table = table
        self._answers = answers
        self._max_message_bytes = max_message_bytes
        self._on_drop = on_drop
        self._reader = FrameReader(admitted.session.receive_key, max_message_bytes)
        self._writer = FrameWriter(admitted.session.send_key)
        self._unsent: deque[memoryview] = deque()
        self._waiter: Waiter | None = None
        self._will: Callable[[], object] | None = None
        loop.register(self._sock, READ, self._ready)

    def drop(self) -> None:
        """Closes the connection. Idempotent."""
        if self._waiter is not None:
            self._table.cancel(self._waiter)
        self._loop.unregister(self._sock)
        close_quietly(self._sock)
        self._on_drop(self)
        will, self._will = self._will, None
        if will is not None:
            will()

    def _ready(self, events: int) -> None:
        try:
            if events & WRITE:
                self._flush()
            if events & READ:
                self._read()
        except BlockingIOError:
            return
        except (messages.MessageError, FrameError, OSError):
            self.drop()

    def _read(self) -> None:
        received = self._sock.recv_into(self._reader.buffer())
        if received == 0:
            raise ConnectionResetError("closed")
        body = self._reader.filled(received)
        if body is not None:
            self._serve(body)

    def _serve(self, body: memoryview) -> None:
        if self._waiter is not None and not self._waiter.done:
            raise messages.MessageError("a request while another one is under way")
        header, values = messages.decode(body)
        operation = header.get("op")
        if operation == "set" and len(values) == 1:
            self._table.set(messages.key_of(header), values[0])
            self._send({}, ())
        elif operation == "add" and len(values) == 1:
            existing = self._table.add(messages.key_of(header), values[0])
            self._send({}, () if existing is None else (existing,))
        elif operation == "append" and len(values) == 1:
            number = self._table.append(messages.key_of(header, "prefix"), values[0])
            self._send({"number": number}, ())
        elif operation == "will" and len(values) <= 1:
            key, is_list = messages.key_of(header), header.get("append") is True
            leave: Callable[[str, bytes], object] = (
                self._table.append if is_list else self._table.add
            )
            self._will = partial(leave, key, values[0]) if values else None
            self._send({}, ())
        elif operation == "wait" and not values:
            self._wait(header)
        elif operation == "delete" and not values and "key" in header:
            self._table.delete(messages.key_of(header))
            self._send({}, ())
        elif operation == "delete" and not values:
            deleted = self._table.delete_prefix(messages.key_of(header, "prefix"))
            self._send({"deleted": deleted}, ())
        else:
            raise messages.MessageError(f"unknown request {operation!r}")

    def _wait(self, header: dict[str, Any]) -> None:
        keys, stop_key = header.get("keys"), header.get("stop_key")
        if not isinstance(keys, list) or not isinstance(stop_key, str):
            raise messages.MessageError("the keys of a request are malformed")
        now = time.monotonic()
        self._waiter = self._table.wait(
            messages.check_keys(keys),
            stop_key,
            now + messages.timeout_of(header),
            now,
            self._answer,
        )

    def _answer(self, found: Found) -> None:
        # Called while somebody else is being served: his connection must not suffer from ours.
        try:
            self._send_parts(self._answers.encode(found))
        except (messages.MessageError, OSError):
            self.drop()

    def _send(self, header: dict[str, Any], values: Sequence[bytes]) -> None:
        self._send_parts(messages.encode(header, values))

    def _send_parts(self, parts: Sequence[bytes]) -> None:
        parts = join_small(parts)
        num_bytes = sum(map(len, parts))
        if num_bytes > self._max_message_bytes:
            parts = messages.encode({"error": f"the answer would have {num_bytes} bytes"})
        self._unsent.extend(map(memoryview, join_small(self._writer.frame(parts))))
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self._sock.send(self._unsent[0])
            except BlockingIOError:
                break
            self._unsent[0] = self._unsent[0][sent:]
            if not self._unsent[0]:
                self._unsent.popleft()
        self._loop.modify(self._sock, READ | WRITE if self._unsent else READ, self._ready)


def _endpoint(sock: socket.socket) -> tuple[str, int]:
    address, port = sock.getsockname()[:2]
    return str(address), int(port)


def _is_for_store(hello: Hello) -> bool:
    return hello.purpose == "store" or hello.purpose in SILENCES


def _prepare(sock: socket.socket) -> bool:
    set_tcp_options(sock)
    return True
