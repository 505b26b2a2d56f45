"""Who has to go when too many strangers knock, and who must not."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import pytest
from strangers import was_thrown_out

from horovod._rendezvous import StoreClient, StoreServer
from horovod._rendezvous.gate import network_of

if TYPE_CHECKING:
    from collections.abc import Iterator

FEW = 8


@pytest.fixture
def small_server(no_leak: None, secret: bytes) -> Iterator[StoreServer]:
    """Reached at two places: loopback, and an address that only this machine has."""
    with StoreServer(secret, max_pending=FEW) as server:
        yield server


@pytest.mark.parametrize(
    ("address", "network"),
    [
        (("10.0.0.2", 1), "10.0.0.2"),
        (("127.0.0.1", 1), "127.0.0.0/8"),
        (("127.250.3.4", 1), "127.0.0.0/8"),
        (("::1", 1, 0, 0), "127.0.0.0/8"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        ("", ""),
        (b"\0name", ""),
    ],
)
def test_what_counts_as_one_place(address: object, network: str) -> None:
    assert network_of(address) == network


def knock_from(source: str, server: StoreServer) -> socket.socket:
    return socket.create_connection((server.address, server.port), 5, (source, 0))


def test_a_crowd_from_one_place_pushes_out_its_own(
    small_server: StoreServer, secret: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On one machine every place is loopback; here its addresses stand for hosts.
    monkeypatch.setattr("horovod._rendezvous.gate.network_of", lambda address: address[0])
    with knock_from("127.0.0.1", small_server) as slow_friend:
        crowd = [knock_from("127.0.0.9", small_server) for _ in range(5 * FEW)]
        try:
            assert all(was_thrown_out(stranger) for stranger in crowd[: 4 * FEW])
            slow_friend.settimeout(0.2)
            with pytest.raises(TimeoutError):
                slow_friend.recv(1)  # it may still speak
        finally:
            for stranger in crowd:
                stranger.close()


def test_a_friend_who_speaks_at_once_is_heard_before_the_crowd_behind_him(
    no_leak: None, secret: bytes
) -> None:
    with StoreServer(secret, max_pending=1) as server:
        crowd = []
        try:
            for _ in range(20):
                crowd += [knock_from("127.0.0.1", server) for _ in range(5)]
                began_s = time.monotonic()
                with StoreClient(server.address, server.port, secret, 5.0) as client:
                    client.set("a", b"1")
                assert time.monotonic() - began_s < 5.0
        finally:
            for stranger in crowd:
                stranger.close()
