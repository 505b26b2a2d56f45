"""The client of the job's key-value store."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from horovod._rendezvous import messages
from horovod._rendezvous.answers import found_in
from horovod._rendezvous.dial import dial, retrying
from horovod._rendezvous.framing import GIB, Channel, FrameError
from horovod._rendezvous.handshake import Hello
from horovod._rendezvous.secret import check_secret
from horovod._rendezvous.server import StoreServer
from horovod._rendezvous.sockets import SILENCES, connect_tcp, watch_closely
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["StoreClient", "StoreServer"]


class StoreClient:
    """A connection to the store; may be shared by threads, which then take turns.

    Args:
        address, port: where the store listens; waits until it does.
        secret: of the job, 32 bytes.
        timeout_s: seconds for connecting, and for the transfer of each request and its answer.
        max_message_bytes: the largest answer that is accepted, and the largest request.
        purpose: "launcher" or "worker" if both ends shall notice soon that the network between them
            is cut: see SILENCES.

    Raises:
        StartError: the store cannot be reached in time, or has another secret.
    """

    def __init__(
        self,
        address: str,
        port: int,
        secret: bytes,
        timeout_s: float = 30.0,
        *,
        max_message_bytes: int = GIB,
        purpose: str = "store",
    ) -> None:
        check_secret(secret)
        self._name = f"the job's store at {address} port {port}"
        self._timeout_s = timeout_s
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        sock, session = dial(
            retrying(partial(connect_tcp, address, port), ConnectionRefusedError),
            secret,
            Hello(purpose),
            time.monotonic() + timeout_s,
            self._name,
        )
        if purpose in SILENCES:
            with suppress(OSError):  # a connection that is broken already says so itself
                watch_closely(sock, SILENCES[purpose])
        self.local_address: str = sock.getsockname()[0]
        self._channel: Channel | None = Channel(sock, session, max_message_bytes)

    def set(self, key: str, value: bytes) -> None:
        """Stores a value of any size up to the largest message; replaces an older one.

        Raises:
            StartError: the value is too large, or the store was lost.
        """
        self._request({"op": "set", "key": messages.check_key(key)}, (value,))

    def add(self, key: str, value: bytes) -> bytes | None:
        """Stores a value only if the key is new; otherwise returns the value that is there.

        Raises:
            StartError: the value is too large, or the store was lost.
        """
        _, values = self._request({"op": "add", "key": messages.check_key(key)}, (value,))
        return values[0] if values else None

    def append(self, prefix: str, value: bytes) -> int:
        """Stores a value at the end of a list: its key is the prefix and the next number, from 0.

        Returns:
            The number.

        Raises:
            StartError: the value is too large, or the store was lost.
        """
        request = {"op": "append", "prefix": messages.check_key(prefix)}
        number = self._request(request, (value,))[0].get("number")
        if not isinstance(number, int):
            raise StartError(f"{self._name} gave an answer that makes no sense")
        return number

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits until the key exists and returns its value.

        Raises:
            StartError: it did not appear within ``timeout_s``, or the store was lost.
        """
        found = self.wait_all([key], timeout_s)
        if key not in found:
            raise StartError(f"{key!r} did not appear in {self._name} within {timeout_s:g} s")
        return found[key]

    def try_get(self, key: str) -> bytes | None:
        """Returns the value, or None if the key does not exist.

        Raises:
            StartError: the store was lost.
        """
        return self.wait_all([key], 0.0).get(key)

    def wait_all(
        self, keys: Sequence[str], timeout_s: float, stop_key: str = ""
    ) -> dict[str, bytes]:
        """Waits until all keys exist, with one request.

        Args:
            keys: what to wait for.
            timeout_s: seconds; finite.
            stop_key: ends the wait early when it exists; empty for none.

        Returns:
            The values of those keys, and of the stop key, that exist; when the wait ended early
            or the time was over, not all of them.

        Raises:
            StartError: the store was lost.
        """
        timeout_s = messages.check_timeout(timeout_s)
        request = {
            "op": "wait",
            "keys": [messages.check_key(key) for key in keys],
            "stop_key": stop_key,
            "timeout_s": timeout_s,
        }
        header, values = self._request(request, (), timeout_s)
        try:
            return found_in(header, values)
        except messages.MessageError as error:
            raise StartError(f"{self._name} gave an answer that makes no sense: {error}") from error

    def leave_will(self, key: str, value: bytes | None, *, append: bool = False) -> None:
        """Has the store add a value when this connection ends, however that happens.

        Args:
            key: of the value; one that is there already is kept.
            value: replaces an earlier will; None for no will any more.
            append: the key is the prefix of a list, as for :meth:`append`.

        Raises:
            StartError: the value is too large, or the store was lost.
        """
        header = {"op": "will", "key": messages.check_key(key), "append": append}
        self._request(header, () if value is None else (value,))

    def delete(self, key: str) -> None:
        """Deletes one key, if it exists. A list goes on counting: its numbers never come twice.

        Raises:
            StartError: the store was lost.
        """
        self._request({"op": "delete", "key": messages.check_key(key)}, ())

    def delete_prefix(self, prefix: str) -> None:
        """Deletes all keys that start with ``prefix``.

        Raises:
            StartError: the store was lost.
        """
        self._request({"op": "delete", "prefix": messages.check_key(prefix)}, ())

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        with self._lock:
            self._disconnect()

    def interrupt(self) -> None:
        """Breaks the connection, from any thread; a request that waits there gets a StartError."""
        channel = self._channel
        if channel is not None:
            channel.interrupt()

    def abandon(self) -> None:
        """In the child of a fork: the connection is the parent's, whose end must show."""
        self._lock = threading.Lock()
        self._disconnect()

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _request(
        self, header: dict[str, Any], values: Sequence[bytes], wait_s: float = 0.0
    ) -> tuple[dict[str, Any], list[bytes]]:
        parts = messages.encode(header, values)
        if sum(map(len, parts)) > self._max_message_bytes:
            raise StartError(
                f"a request of {sum(map(len, parts))} bytes is above the {self._max_message_bytes} "
                f"that {self._name} accepts"
            )
        with self._lock:
            answer, answer_values = messages.decode(self._exchange(parts, wait_s))
        if "error" in answer:
            raise StartError(f"{self._name}: {answer['error']}")
        return answer, answer_values

    def _exchange(self, parts: Sequence[bytes], wait_s: float) -> memoryview:
        if self._channel is None:
            raise StartError(f"the connection to {self._name} is closed")
        deadline = time.monotonic() + self._timeout_s
        try:
            self._channel.send(parts, deadline)
            return self._channel.receive(deadline + wait_s)
        except (OSError, FrameError) as error:
            self._disconnect()
            raise StartError(f"the connection to {self._name} was lost: {error}") from error
        except BaseException:
            # Interrupted between request and answer: the next answer would be the wrong one.
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
