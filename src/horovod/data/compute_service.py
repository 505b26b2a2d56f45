"""The meeting point of tf.data's servers: dispatchers, workers, and the ranks that train.

It is a store such as every job has, with the secret of the compute job, and keys of its own. Only
those who know the secret can register an address or read one.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from horovod._rendezvous import StoreClient, StoreServer
from horovod._rendezvous.interfaces import interfaces_of, reachable_addresses
from horovod._rendezvous.messages import MAX_TIMEOUT_S
from horovod._rendezvous.reach import AuthenticationError, reach
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHAPE = "shape"
_SHUTDOWN = "shutdown"
_MAX_MESSAGE_BYTES = 1 << 20
_CONNECT_TIMEOUT_S = 60.0

Addresses = dict[str, list[tuple[str, int]]]
"""By network interface: addresses and ports."""


class ComputeService:
    """Serves :class:`ComputeClient` objects on all hosts.

    Args:
        dispatchers: how many dispatchers register, at least 1.
        workers_per_dispatcher: how many workers register for each, at least 1.
        key: the secret, 32 bytes.
        nics: only at the addresses of these network interfaces.
        keep_running: whether the service outlives a training job that ends without shutting it
            down.

    Raises:
        ValueError: a count is not positive.
        StartError: it cannot listen.
    """

    def __init__(
        self,
        dispatchers: int,
        workers_per_dispatcher: int,
        key: bytes,
        nics: Sequence[str] | None = None,
        *,
        keep_running: bool = False,
    ) -> None:
        for what, count in (
            ("dispatchers", dispatchers),
            ("workers_per_dispatcher", workers_per_dispatcher),
        ):
            if count <= 0:
                raise ValueError(f"{what} is {count}, but must be at least 1")
        first, *others = _own_addresses(nics or ())
        self._server = StoreServer(
            key, first, further_addresses=others, max_message_bytes=_MAX_MESSAGE_BYTES
        )
        shape = [dispatchers, workers_per_dispatcher, keep_running]
        self._server.set(_SHAPE, json.dumps(shape).encode())

    def addresses(self) -> Addresses:
        """The addresses at which it listens, by network interface."""
        found: Addresses = {}
        for address, port in self._server.endpoints:
            for nic in interfaces_of(address):
                found.setdefault(nic, []).append((address, port))
        return found

    def close(self) -> None:
        """Ends it; clients find it lost. Idempotent."""
        self._server.close()

    def __enter__(self) -> ComputeService:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class ComputeClient:
    """A connection to a :class:`ComputeService`. Its calls wait for one another.

    Args:
        compute_addresses: of the service; all are tried at once.
        key: the secret, 32 bytes.
        timeout_s: seconds for connecting.

    Attributes:
        service_address: the one of the service's addresses that is used.
        own_address: of this host, as the service sees it.

    Raises:
        StartError: the service cannot be reached, or has another secret.
    """

    def __init__(
        self,
        compute_addresses: Mapping[str, Sequence[tuple[str, int]]],
        key: bytes,
        timeout_s: float = _CONNECT_TIMEOUT_S,
    ) -> None:
        endpoints = [each for some in compute_addresses.values() for each in some]
        try:
            way = reach(endpoints, key, time.monotonic() + timeout_s)
            self._store = StoreClient(
                *way.endpoint, key, timeout_s, max_message_bytes=_MAX_MESSAGE_BYTES
            )
        except StartError as error:
            names = ", ".join(f"{address} port {port}" for address, port in endpoints)
            why = (
                "it has another key"
                if isinstance(error, AuthenticationError)
                else "it is not there or a firewall is in between"
            )
            raise StartError(
                f"the compute service at {names} cannot be used: {why}. Does the compute job still "
                "run, and is the config file the one that it wrote?"
            ) from error
        self.service_address, self.own_address = way.endpoint[0], way.own_address
        self._dispatchers, self._workers, self._keep_running = json.loads(
            self._store.get(_SHAPE, timeout_s)
        )

    def register_dispatcher(self, dispatcher_id: int, address: str) -> None:
        """Tells all others where a dispatcher listens; the same address may be told again.

        Raises:
            IndexError: there is no such dispatcher.
            ValueError: it is registered with another address.
            StartError: the service was lost.
        """
        self._check(dispatcher_id)
        there = self._store.add(_dispatcher(dispatcher_id), address.encode())
        if there is not None and there.decode() != address:
            raise ValueError(
                f"dispatcher {dispatcher_id} is registered at {there.decode()} already, so not at "
                f"{address}"
            )

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """The address of a dispatcher, as soon as it is registered.

        Args:
            timeout: seconds.

        Raises:
            IndexError: there is no such dispatcher.
            TimeoutError: it did not register in time.
            StartError: the service was shut down or lost.
        """
        self._check(dispatcher_id)
        return self._wait(
            _dispatcher(dispatcher_id), timeout, f"dispatcher {dispatcher_id} did not register"
        ).decode()

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Counts a worker of a dispatcher; one that is told again counts once.

        Raises:
            IndexError: there is no such dispatcher.
            ValueError: the dispatcher has all its workers.
            StartError: the service was lost.
        """
        self._check(dispatcher_id)
        if self._store.add(f"worker/{dispatcher_id}/{worker_id}", b"") is not None:
            return
        if self._store.append(_workers(dispatcher_id), b"") >= self._workers:
            raise ValueError(
                f"dispatcher {dispatcher_id} has {self._workers} workers already; worker "
                f"{worker_id} is one too many"
            )

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Waits until all workers of a dispatcher are registered.

        Args:
            timeout: seconds.

        Raises:
            IndexError: there is no such dispatcher.
            TimeoutError: some did not register in time.
            StartError: the service was shut down or lost.
        """
        self._check(dispatcher_id)
        what = f"the {self._workers} workers of dispatcher {dispatcher_id} did not all register"
        self._wait(f"{_workers(dispatcher_id)}{self._workers - 1}", timeout, what)

    def shutdown(self, reason: str = "") -> None:
        """Ends the service: its workers stop, and who waits stops waiting.

        Args:
            reason: what the compute job says of it.

        Raises:
            StartError: the service was lost.
        """
        self._store.add(_SHUTDOWN, reason.encode())

    def shut_down_when_lost(self, reason: str) -> None:
        """Has the service shut down when this connection ends, unless it shall keep running.

        Raises:
            StartError: the service was lost.
        """
        if not self._keep_running:
            self._store.leave_will(_SHUTDOWN, reason.encode())

    def wait_for_shutdown(self) -> str:
        """Waits until somebody shuts the service down.

        Returns:
            Its reason.

        Raises:
            StartError: the service was lost.
        """
        return self._store.get(_SHUTDOWN, MAX_TIMEOUT_S).decode()

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._store.close()

    def __enter__(self) -> ComputeClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check(self, dispatcher_id: int) -> None:
        if not 0 <= dispatcher_id < self._dispatchers:
            raise IndexError(
                f"there is no dispatcher {dispatcher_id}: the compute job has "
                f"{self._dispatchers}, numbered from 0; each training rank needs its own, unless "
                "all share one"
            )

    def _wait(self, key: str, timeout: float, complaint: str) -> bytes:
        found = self._store.wait_all([key], timeout, _SHUTDOWN)
        if key in found:
            return found[key]
        if _SHUTDOWN in found:
            raise StartError(f"the compute service was shut down, and {complaint} before")
        raise TimeoutError(f"{complaint} with the compute service within {timeout:g} s")


def _dispatcher(dispatcher_id: int) -> str:
    return f"dispatcher/{dispatcher_id}"


def _workers(dispatcher_id: int) -> str:
    return f"workers/{dispatcher_id}/"


def _own_addresses(nics: Sequence[str]) -> list[str]:
    try:
        return reachable_addresses(nics)
    except StartError:
        return ["127.0.0.1"]  # of all that are on this machine
