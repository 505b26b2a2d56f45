"""Measuring the network between hosts: what is decided, and that failures cost little."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from told import told

from horovod._rendezvous import StoreClient, StoreServer
from horovod._rendezvous.link_speed import (
    LinkSpeeds,
    agree_on_speeds,
    answer,
    combine,
    measure,
    number_hosts,
    probes,
)
from horovod.errors import StartError


def test_hosts_are_numbered_in_the_order_of_their_first_ranks() -> None:
    assert number_hosts(["x", "a", "x", "b", "a"]) == (0, 1, 0, 2, 1)
    assert number_hosts(["x"]) == (0,)


def test_the_first_ranks_of_the_hosts_measure_around_a_ring() -> None:
    assert probes([0, 0, 0]) == []
    assert probes([0, 1, 0, 1]) == [(0, 1)]
    assert probes([0, 1, 0, 2, 1, 3]) == [(0, 1), (1, 3), (3, 5), (5, 0)]


def test_a_slow_host_does_not_make_its_neighbors_slow() -> None:
    hosts = [0, 0, 1, 2, 3]
    measured = {
        (0, 2): (1e-5, 1e9),
        (2, 3): (2e-5, 1e7),  # host 2 is slow
        (3, 4): (4e-5, 1e7),
        (4, 0): (1e-5, 1.1e9),
    }
    speeds = combine(hosts, measured)
    assert speeds.latency_s == pytest.approx(1.5e-5)
    assert speeds.bytes_per_s == (1.1e9, 1e9, 1e7, 1.1e9)


def test_what_failed_is_not_known() -> None:
    assert combine([0, 1], {}) == LinkSpeeds(0.0, (0.0, 0.0))
    assert combine([0, 1, 2], {(0, 1): (1e-5, 5e8)}) == LinkSpeeds(1e-5, (5e8, 5e8, 0.0))


def test_speeds_come_back_from_their_text() -> None:
    speeds = LinkSpeeds(1.25e-5, (1e9, 0.0))
    assert LinkSpeeds.from_json(speeds.to_json(), 2) == speeds
    for text in (b"", b"{}", b"[1, 2]", b'["x", 1, 2]', b"[[]]"):
        with pytest.raises(StartError, match="make no sense"):
            LinkSpeeds.from_json(text, 2)


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


def test_a_measurement_is_soon_over() -> None:
    times, latencies, rates = [], [], []
    for _ in range(3):
        near, far = _connected()
        with near, far, ThreadPoolExecutor(1) as threads:
            answering = threads.submit(answer, far)
            start = time.monotonic()
            latency_s, rate = measure(near)
            times.append(time.monotonic() - start)
            answering.result()
        latencies.append(latency_s)
        rates.append(rate)
    # 30 ms on an idle machine; tests share theirs.
    assert min(times) < 0.5
    assert 0 < min(latencies) < 0.1
    assert max(rates) > 1e6


def test_a_peer_that_goes_away_is_an_error_at_once() -> None:
    near, far = _connected()
    with near:
        far.close()
        start = time.monotonic()
        with pytest.raises(ConnectionError):
            measure(near)
        assert time.monotonic() - start < 1.9, "its patience is 2 s"


def test_ranks_agree_also_if_a_probe_fails(server: StoreServer, secret: bytes) -> None:
    near, far = _connected()
    far.close()  # rank 1 never answers
    results = {}

    def join(rank: int, links: dict[int, socket.socket]) -> None:
        with StoreClient(server.address, server.port, secret) as store:
            deadline = time.monotonic() + 60.0
            results[rank] = agree_on_speeds(store, "peers/0/", rank, [0, 1, 1], links, deadline)

    with near:
        others = [threading.Thread(target=join, args=(rank, {0: near})) for rank in (2,)]
        for thread in others:
            thread.start()
        with told("rank 0 to 1;"):
            join(0, {1: near})
        for thread in others:
            thread.join()
    assert results == dict.fromkeys((0, 2), LinkSpeeds(0.0, (0.0, 0.0)))


def test_a_failed_job_ends_the_wait(server: StoreServer, secret: bytes) -> None:
    with StoreClient(server.address, server.port, secret) as store:
        store.set("peers/0/failed", b"rank 0 could not start: no memory")
        with pytest.raises(StartError, match="no memory"):
            agree_on_speeds(store, "peers/0/", 2, [0, 1, 1], {}, time.monotonic() + 60.0)


def test_all_local_jobs_measure_nothing(server: StoreServer, secret: bytes) -> None:
    with StoreClient(server.address, server.port, secret) as store:
        speeds = agree_on_speeds(store, "peers/0/", 0, [0, 0], {}, time.monotonic() + 60.0)
    assert speeds == LinkSpeeds()
    assert server.try_get("peers/0/speeds") is None
