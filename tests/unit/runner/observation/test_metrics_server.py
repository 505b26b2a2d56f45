"""What the endpoint of a monitor does with strangers."""

from __future__ import annotations

import gc
import os
import socket
import time
from contextlib import ExitStack, suppress

import pytest

from horovod.errors import UsageError
from horovod.runner.observation.metrics_server import MOST_CONNECTIONS, MetricsServer

TOKEN = "a" * 64
PATIENCE_S = 30.0


def connected(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)


def answer(server: MetricsServer, request: str = "GET /metrics", token: str = TOKEN) -> str:
    head = f"{request} HTTP/1.1\r\nHost: x\r\nauthorization: Bearer {token}\r\n\r\n"
    with connected(server) as client:
        client.sendall(head.encode())
        return rest(client).decode()


def rest(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection, however it does."""
    data = b""
    with suppress(ConnectionResetError):
        while part := client.recv(65536):
            data += part
    return data


def test_who_has_the_token_gets_the_metrics_and_nobody_else() -> None:
    body = "metric 1\n" * 100_000
    server = MetricsServer(0, TOKEN, lambda: body)
    got = answer(server)
    assert got.startswith("HTTP/1.1 200 OK\r\n")
    assert got.endswith(f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}")
    for request, token, status in (
        ("GET /metrics", "b" * 64, "401"),
        ("GET /metrics", "", "401"),
        ("GET /other", TOKEN, "404"),
        ("POST /metrics", TOKEN, "405"),
        ("", TOKEN, "405"),
    ):
        assert answer(server, request, token).startswith(f"HTTP/1.1 {status} ")
    with pytest.raises(UsageError, match=f"--prometheus {server.port}: "):
        MetricsServer(server.port, TOKEN, lambda: "")


def test_idle_connections_keep_nobody_out() -> None:
    server = MetricsServer(0, TOKEN, lambda: "metric 1\n")
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(server)) for _ in range(3 * MOST_CONNECTIONS)]
        assert answer(server).endswith("metric 1\n")
        for each in idle[: 2 * MOST_CONNECTIONS]:  # the oldest ones had to go
            assert rest(each) == b""
        assert len(server._connections) <= MOST_CONNECTIONS


def test_a_request_has_one_deadline_however_slowly_it_comes() -> None:
    server = MetricsServer(0, TOKEN, lambda: "metric 1\n", request_s=0.5)
    began_s = time.monotonic()
    with connected(server) as client, suppress(ConnectionError):
        client.settimeout(0.1)
        while time.monotonic() < began_s + PATIENCE_S:
            client.sendall(b"a")
            with suppress(TimeoutError):
                if not client.recv(1):
                    break
    assert 0.4 < time.monotonic() - began_s < PATIENCE_S


def test_a_client_that_reads_nothing_is_dropped() -> None:
    server = MetricsServer(0, TOKEN, lambda: "x" * 50_000_000, request_s=0.5)
    with connected(server) as client:
        request = f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        client.sendall(request.encode())
        deadline_s = time.monotonic() + PATIENCE_S
        assert client.recv(1)
        while server._connections:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_a_long_head_is_not_kept() -> None:
    server = MetricsServer(0, TOKEN, lambda: "metric 1\n")
    with connected(server) as client:
        with suppress(ConnectionError):
            client.sendall(b"GET /metrics HTTP/1.1\r\n" + b"a" * 1_000_000)
        assert rest(client) == b""


def test_a_server_that_is_closed_keeps_nothing_open() -> None:
    MetricsServer(0, TOKEN, lambda: "").close()  # what asyncio itself keeps is there from now on
    gc.collect()  # what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    server = MetricsServer(0, TOKEN, lambda: "metric 1\n")
    with connected(server) as idle:
        assert answer(server).endswith("metric 1\n")
        server.close()
        server.close()
        assert rest(idle) == b""
    assert len(os.listdir("/proc/self/fd")) <= before
