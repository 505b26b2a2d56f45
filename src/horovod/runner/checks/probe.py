"""Runs on each host for ``horovodrun --check`` (``python -m horovod.runner.checks.probe``).

It tells what the host is like, connects to the launcher as a rank would, and measures the network
to its neighbors: host i dials host i - 1, and the last one dials host 0 as well. A part that fails
becomes text in the answer; the others go on.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from horovod._rendezvous.accept import Acceptor
from horovod._rendezvous.dial import dial, retrying
from horovod._rendezvous.handshake import Hello
from horovod._rendezvous.incarnation import Incarnation
from horovod._rendezvous.link_speed import answer, measure
from horovod._rendezvous.reach import reach
from horovod._rendezvous.sockets import connect_tcp
from horovod._rendezvous.store import StoreClient
from horovod.errors import StartError
from horovod.runner.checks.facts import collect_facts
from horovod.runner.checks.run_on import read_question, write_answer

if TYPE_CHECKING:
    from collections.abc import Callable

# For the launcher.
_REACH_S = 10.0


def ended_key(index: int) -> str:
    """Exists once the launcher knows that a host will do nothing more."""
    return f"ended/{index}"


def targets_of(index: int, num_hosts: int) -> list[int]:
    """The hosts to which a host connects; each pair of neighbors on the ring once.

    Example:
        >>> [targets_of(index, 4) for index in range(4)]
        [[], [0], [1], [2, 0]]
    """
    if index == 0:
        return []
    around = index == num_hosts - 1 and num_hosts > 2
    return [index - 1, *([0] if around else [])]


def main() -> None:
    """Answers one question."""
    question = read_question(sys.stdin)
    report: dict[str, Any] = {"facts": collect_facts().to_dict(), "links": {}, "fault": ""}
    try:
        _meet(question, report)
    except (StartError, OSError) as error:
        report["fault"] = str(error)
    write_answer(sys.stdout, report)


def _meet(question: dict[str, Any], report: dict[str, Any]) -> None:
    index, num_hosts = question["index"], question["num_hosts"]
    secret = bytes.fromhex(question["secret"])
    with _connect(question["endpoints"], secret) as store:
        report["address"] = store.local_address
        store.set(f"clock/{index}", repr(time.time()).encode())
        with Acceptor(store.local_address, index, num_hosts, Incarnation(), secret) as acceptor:
            place = [acceptor.tcp_address, acceptor.tcp_port]
            store.set(f"place/{index}", json.dumps(place).encode())
            deadline = time.monotonic() + question["links_s"]
            sources = [
                source
                for source in range(index + 1, num_hosts)
                if index in targets_of(source, num_hosts)
            ]
            with _Sources(question["endpoints"], secret, sources, acceptor, deadline) as arrived:
                threads = [
                    threading.Thread(target=_answer, args=(acceptor, deadline, arrived))
                    for _ in sources
                ]
                for thread in threads:
                    thread.start()
                for target in targets_of(index, num_hosts):
                    report["links"][str(target)] = _measure(store, secret, index, target, deadline)
                for thread in threads:
                    thread.join()  # all that it does has a deadline


def _connect(endpoints: list[list[Any]], secret: bytes) -> StoreClient:
    """To the first address of the launcher that answers here."""
    known = [(str(address), int(port)) for address, port in endpoints]
    try:
        way = reach(known, secret, time.monotonic() + _REACH_S)
    except (StartError, TimeoutError):
        addresses = ", ".join(address for address, _ in known)
        raise StartError(
            f"cannot reach the launcher at {addresses}; does a firewall block connections to "
            "it? Name the interface of the right network with --network-interfaces"
        ) from None
    return StoreClient(*way.endpoint, secret, _REACH_S)


def _measure(
    store: StoreClient, secret: bytes, index: int, target: int, deadline: float
) -> list[float] | str:
    """Latency in seconds and bytes per second, or what went wrong."""
    try:
        left_s = max(0.0, deadline - time.monotonic())
        place, gone = f"place/{target}", ended_key(target)
        found = store.wait_all([place], left_s, gone)
        if place not in found:
            why = "it has ended" if gone in found else "it did not appear in time"
            raise StartError(why)
        address, port = json.loads(found[place])
        sock, _ = dial(
            retrying(partial(connect_tcp, address, port), ConnectionRefusedError),
            secret,
            Hello("speed", rank=index, to_rank=target),
            deadline,
            f"{address} port {port}",
        )
        with sock:
            return list(measure(sock))
    except (StartError, OSError) as error:
        return str(error)


class _Sources:
    """Hosts that are to dial this one: nobody waits for one that the launcher knows has ended.

    Inside the block, it is a function that takes the number of a host that has come.
    """

    def __init__(
        self,
        endpoints: list[list[Any]],
        secret: bytes,
        sources: list[int],
        acceptor: Acceptor,
        deadline: float,
    ) -> None:
        self._missing = set(sources)
        self._lock = threading.Lock()
        self._acceptor = acceptor
        self._deadline = deadline
        self._stores = {source: _connect(endpoints, secret) for source in sources}

    def __enter__(self) -> Callable[[int], object]:
        for source, store in self._stores.items():
            threading.Thread(target=self._watch, args=(source, store), daemon=True).start()
        return self._take

    def __exit__(self, *exception: object) -> None:
        for store in self._stores.values():
            store.interrupt()

    def _take(self, source: int) -> bool:
        """Whether it was still missing."""
        with self._lock:
            was_missing = source in self._missing
            self._missing.discard(source)
            return was_missing

    def _watch(self, source: int, store: StoreClient) -> None:
        key = ended_key(source)
        with store, suppress(StartError):
            found = store.wait_all([key], max(0.0, self._deadline - time.monotonic()))
            if key in found and self._take(source):
                self._acceptor.expect_one_less()


def _answer(acceptor: Acceptor, deadline: float, arrived: Callable[[int], object]) -> None:
    try:
        admitted = acceptor.take(deadline)
        arrived(admitted.hello.rank)
    except (StartError, TimeoutError, queue.Empty):
        return  # the other end tells why it did not come
    with admitted.sock as sock:
        try:
            answer(sock)
        except OSError:
            return  # the other end tells what happened


if __name__ == "__main__":
    main()
