"""The port that is kept for a server of another library."""

from __future__ import annotations

import socket

import pytest

from horovod._rendezvous.reserved_port import reserve_port


def test_a_reserved_port_is_for_a_server_that_asks_for_it_by_number() -> None:
    with reserve_port() as first, reserve_port() as second:
        port = first.getsockname()[1]
        assert port != second.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with pytest.raises(OSError, match="in use"), socket.socket() as careless:
            careless.bind(("127.0.0.1", port))  # without SO_REUSEADDR
        for address in ("127.0.0.1", ""):
            with socket.create_server((address, port)) as server:
                socket.create_connection(("127.0.0.1", port)).close()
                server.accept()[0].close()
