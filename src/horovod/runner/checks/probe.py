"""What ``horovodrun --check`` runs on each host (``python -m horovod.runner.checks.probe``).

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
from functools import partial
from typing import Any

from horovod.errors import StartError
from horovod.rendezvous.accept import Acceptor
from horovod.rendezvous.dial import dial, retrying
from horovod.rendezvous.handshake import Hello
from horovod.rendezvous.incarnation import Incarnation
from horovod.rendezvous.link_speed import answer, measure
from horovod.rendezvous.reach import reach
from horovod.rendezvous.sockets import connect_tcp
from horovod.rendezvous.store import StoreClient
from horovod.runner.checks.facts import collect_facts
from horovod.runner.checks.run_on import read_question, write_answer

# For neighbors to appear and to be measured: a host that is gone must not cost the whole timeout.
_LINKS_S = 10.0
# For the launcher.
_REACH_S = 10.0


def dialled_by(index: int, num_hosts: int) -> list[int]:
    """The hosts to which a host connects; each pair of neighbors on the ring once.

    Example:
        >>> [dialled_by(index, 4) for index in range(4)]
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
            deadline = time.monotonic() + min(_LINKS_S, question["timeout_s"])
            sources = [
                source
                for source in range(index + 1, num_hosts)
                if index in dialled_by(source, num_hosts)
            ]
            threads = [threading.Thread(target=_answer, args=(acceptor, deadline)) for _ in sources]
            for thread in threads:
                thread.start()
            for target in dialled_by(index, num_hosts):
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
            f"cannot reach the launcher at {addresses}; does a firewall let connections to it "
            "pass? Name the interface of the right network with --network-interfaces"
        ) from None
    return StoreClient(*way.endpoint, secret, _REACH_S)


def _measure(
    store: StoreClient, secret: bytes, index: int, target: int, deadline: float
) -> list[float] | str:
    """Latency in seconds and bytes per second, or what went wrong."""
    try:
        left_s = max(0.0, deadline - time.monotonic())
        address, port = json.loads(store.get(f"place/{target}", left_s))
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


def _answer(acceptor: Acceptor, deadline: float) -> None:
    try:
        admitted = acceptor.take(deadline)
    except (StartError, TimeoutError, queue.Empty):
        return  # the other end tells why it did not come
    with admitted.sock as sock:
        try:
            answer(sock)
        except OSError:
            return  # the other end tells what happened


if __name__ == "__main__":
    main()
