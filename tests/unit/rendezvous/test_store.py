"""The store: threads stand for ranks; strangers come in between."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from strangers import GARBAGE, knock, send_all, was_thrown_out

from horovod._rendezvous import StoreClient, StoreServer, make_secret
from horovod._rendezvous.dial import dial
from horovod._rendezvous.framing import FrameWriter
from horovod._rendezvous.handshake import Hello, Session, pack_hello
from horovod._rendezvous.messages import encode
from horovod._rendezvous.sockets import connect_tcp
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def client(server: StoreServer, secret: bytes) -> Iterator[StoreClient]:
    with connect(server, secret) as client:
        yield client


def connect(server: StoreServer, secret: bytes, timeout_s: float = 30.0) -> StoreClient:
    return StoreClient(server.address, server.port, secret, timeout_s)


def authenticate(server: StoreServer, secret: bytes) -> tuple[socket.socket, Session]:
    """A raw connection with valid keys, for peers that misbehave after the handshake."""
    deadline = time.monotonic() + 30
    return dial(
        lambda deadline: connect_tcp(server.address, server.port, deadline),
        secret,
        Hello("store"),
        deadline,
        "the store",
    )


def test_values_are_set_and_got(server: StoreServer, client: StoreClient) -> None:
    client.set("a", b"\0binary\xff")
    client.set("empty", b"")
    assert client.get("a", 5.0) == b"\0binary\xff"
    assert client.get("empty", 5.0) == b""
    assert client.try_get("absent") is None
    assert server.get("a", 5.0) == b"\0binary\xff"
    server.set("b", b"2")
    assert client.try_get("b") == b"2"
    assert server.try_get("absent") is None


def test_add_returns_the_value_that_was_first(client: StoreClient) -> None:
    assert client.add("a", b"1") is None
    assert client.add("a", b"2") == b"1"


def test_a_will_is_carried_out_when_the_connection_ends(
    server: StoreServer, secret: bytes, client: StoreClient
) -> None:
    with StoreClient(server.address, server.port, secret) as mortal:
        mortal.leave_will("gone", b"first will")
        mortal.leave_will("gone", b"last will")
        assert client.try_get("gone") is None
    assert client.get("gone", 10.0) == b"last will"
    with StoreClient(server.address, server.port, secret) as other:
        other.leave_will("gone too", b"will")
        other.leave_will("gone too", None)
    with StoreClient(server.address, server.port, secret) as third:
        third.leave_will("gone", b"too late")
    assert client.get("gone", 10.0) == b"last will"
    assert client.try_get("gone too") is None


def test_a_list_grows_at_its_end(server: StoreServer, secret: bytes, client: StoreClient) -> None:
    assert [client.append("log/", b"a"), server.append("log/", b"b")] == [0, 1]
    assert client.append("other/", b"x") == 0
    with StoreClient(server.address, server.port, secret) as mortal:
        mortal.leave_will("log/", b"gone", append=True)
    assert client.get("log/2", 10.0) == b"gone"
    assert server.wait_all(["log/0", "log/1"], 1.0) == {"log/0": b"a", "log/1": b"b"}
    assert server.wait_all(["never"], 10.0, "log/0") == {"log/0": b"a"}


def test_a_store_knows_when_nobody_uses_it(server: StoreServer, secret: bytes) -> None:
    server.wait_unused(10.0)
    first = StoreClient(server.address, server.port, secret)
    with (
        StoreClient(server.address, server.port, secret) as second,
        ThreadPoolExecutor(1) as threads,
    ):
        unused = threads.submit(server.wait_unused, 10.0)
        first.close()
        second.set("still", b"here")
        assert not unused.done()
        second.close()
        unused.result(10.0)


def test_delete_prefix(server: StoreServer, client: StoreClient) -> None:
    for key in ("x/1", "x/2", "y"):
        client.set(key, b"")
    client.delete_prefix("x/")
    assert [client.try_get(key) for key in ("x/1", "x/2", "y")] == [None, None, b""]
    assert server.delete_prefix("y") == 1


def test_delete_takes_one_key_and_a_list_goes_on_counting(
    server: StoreServer, client: StoreClient
) -> None:
    for _ in range(12):
        client.append("list/", b"x")
    client.delete("list/1")
    server.delete("list/0")
    client.delete("missing")
    found = client.wait_all([f"list/{number}" for number in range(12)], 0.0)
    assert sorted(found) == sorted(f"list/{number}" for number in range(2, 12))
    assert client.append("list/", b"x") == 12


def test_a_get_blocks_until_the_key_is_set(
    server: StoreServer, client: StoreClient, secret: bytes
) -> None:
    with connect(server, secret) as other, ThreadPoolExecutor(2) as ranks:
        waiting = [ranks.submit(client.get, "late", 10.0), ranks.submit(server.get, "late", 10.0)]
        other.set("late", b"value")
        assert [future.result() for future in waiting] == [b"value", b"value"]


def test_a_get_that_times_out_names_the_key_and_the_client_stays_usable(
    server: StoreServer, client: StoreClient
) -> None:
    with pytest.raises(StartError, match=r"'never/set' did not appear in .* within 0.02 s"):
        client.get("never/set", 0.02)
    with pytest.raises(StartError, match="'never/set' did not appear"):
        server.get("never/set", 0.02)
    client.set("a", b"1")
    assert client.try_get("a") == b"1"


def test_wait_all_returns_what_there_is_when_stopped(client: StoreClient) -> None:
    client.set("a", b"1")
    assert client.wait_all(["a", "b"], 0.01) == {"a": b"1"}
    client.set("stop", b"!")
    assert client.wait_all(["a", "b"], 10.0, "stop") == {"a": b"1", "stop": b"!"}


def test_large_values_pass(client: StoreClient) -> None:
    value = os.urandom(8 * 1024 * 1024 + 1)
    client.set("large", value)
    assert client.get("large", 10.0) == value


def test_sixteen_clients_at_once(server: StoreServer, secret: bytes) -> None:
    def rank(index: int) -> list[bytes]:
        with connect(server, secret) as client:
            client.set(f"rank/{index}", str(index).encode())
            found = client.wait_all([f"rank/{other}" for other in range(16)], 10.0)
            return list(found.values())

    with ThreadPoolExecutor(16) as ranks:
        assert list(ranks.map(rank, range(16))) == [[str(i).encode() for i in range(16)]] * 16


def test_a_client_shared_by_threads_keeps_answers_apart(client: StoreClient) -> None:
    def work(index: int) -> bytes:
        client.set(str(index), str(index).encode())
        return client.get(str(index), 10.0)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(20))) == [str(i).encode() for i in range(20)]


def test_it_listens_only_on_the_given_address(server: StoreServer) -> None:
    assert server.address == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=5)


def test_it_listens_at_several_addresses_until_one_was_chosen(no_leak: None) -> None:
    secret = make_secret()
    with StoreServer(secret, "127.0.0.1", further_addresses=["127.0.0.2"]) as server:
        (first, second) = server.endpoints
        with StoreClient(*first, secret) as early, StoreClient(*second, secret) as client:
            server.narrow(second)
            assert server.endpoints == (second,)
            assert (server.address, server.port) == second
            early.set("a", b"1")
            assert client.try_get("a") == b"1"
            with pytest.raises(OSError, match="refused"):
                connect_tcp(*first, time.monotonic() + 5.0)


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::"])
def test_it_refuses_to_listen_on_all_interfaces(no_leak: None, address: str) -> None:
    with pytest.raises(StartError, match="all interfaces"):
        StoreServer(make_secret(), address)


def test_a_taken_port_and_a_foreign_address_are_named(server: StoreServer, secret: bytes) -> None:
    with pytest.raises(StartError, match=f"port {server.port}"):
        StoreServer(secret, port=server.port)
    with pytest.raises(StartError, match=r"192\.0\.2\.1"):
        StoreServer(secret, "192.0.2.1")


def test_another_secret_is_refused_soon(server: StoreServer) -> None:
    with pytest.raises(StartError, match="its secret differs"):
        connect(server, make_secret())


def test_nobody_listening_is_a_start_error_in_time(no_leak: None, secret: bytes) -> None:
    with StoreServer(secret) as server:
        port = server.port
    with pytest.raises(StartError, match=f"cannot connect to .* port {port}"):
        StoreClient("127.0.0.1", port, secret, 0.1)


def test_a_client_waits_for_a_store_that_starts_later(no_leak: None, secret: bytes) -> None:
    with StoreServer(secret) as server:
        port = server.port
    with ThreadPoolExecutor(1) as rank:
        future = rank.submit(StoreClient, "127.0.0.1", port, secret, 10.0)
        with StoreServer(secret, port=port), future.result():
            pass


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_gets_no_answer_and_others_are_served(
    server: StoreServer, client: StoreClient, secret: bytes, kind: str
) -> None:
    with knock(server.address, server.port) as stranger:
        send_all(stranger, GARBAGE[kind])
        assert was_thrown_out(stranger)
    client.set("a", b"1")
    with connect(server, secret) as late:
        assert late.get("a", 5.0) == b"1"


def test_a_recorded_handshake_is_refused(server: StoreServer, secret: bytes) -> None:
    recorded = pack_hello(secret, Hello("store"), b"n" * 32)
    with knock(server.address, server.port) as first:
        first.sendall(recorded)
        assert len(first.recv(64, socket.MSG_WAITALL)) == 64
        with knock(server.address, server.port) as second:
            second.sendall(recorded)
            assert was_thrown_out(second)


def test_a_hello_for_another_purpose_is_refused(server: StoreServer, secret: bytes) -> None:
    with knock(server.address, server.port) as peer:
        peer.sendall(pack_hello(secret, Hello("data", 1, 0), b"n" * 32))
        assert was_thrown_out(peer)


def test_silence_and_dripping_end_at_the_absolute_deadline(no_leak: None, secret: bytes) -> None:
    with StoreServer(secret, handshake_timeout_s=0.1) as server:
        hello = pack_hello(secret, Hello("store"), b"n" * 32)
        with (
            knock(server.address, server.port) as silent,
            knock(server.address, server.port) as dripping,
        ):
            thrown_out, whole = threading.Event(), threading.Event()

            def drip() -> None:
                for byte in hello:
                    if thrown_out.wait(0.1):
                        return
                    send_all(dripping, bytes([byte]))
                whole.set()

            thread = threading.Thread(target=drip)
            thread.start()
            assert was_thrown_out(silent)
            assert was_thrown_out(dripping)
            thrown_out.set()
            thread.join()
            assert not whole.is_set()


def test_idle_connections_are_bounded_and_cannot_keep_a_rank_out(
    no_leak: None, secret: bytes
) -> None:
    with StoreServer(secret, max_pending=8) as server:
        idle = [knock(server.address, server.port) for _ in range(100)]
        try:
            with connect(server, secret) as client:
                client.set("a", b"1")
            # The oldest ones had to go, without waiting for their deadline.
            assert all(was_thrown_out(stranger) for stranger in idle[:90])
        finally:
            for stranger in idle:
                stranger.close()


def test_out_of_descriptors_the_store_recovers(no_leak: None, secret: bytes) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with StoreServer(secret) as server, socket.socket() as early:
        deadline = time.monotonic() + 10
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        fillers = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest + 1)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1, hard))
            early.connect((server.address, server.port))
            server.set("still", b"alive")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in fillers:
                os.close(descriptor)
        with connect(server, secret, deadline - time.monotonic()) as client:
            assert client.get("still", 5.0) == b"alive"


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"op": "drop everything"},
        {"op": "set", "key": 3},
        {"op": "set", "key": ""},
        {"op": "wait", "keys": "all", "stop_key": "", "timeout_s": 1},
        {"op": "wait", "keys": [None], "stop_key": "", "timeout_s": 1},
        {"op": "wait", "keys": [], "stop_key": None, "timeout_s": 1},
        {"op": "wait", "keys": ["a"], "stop_key": "", "timeout_s": -1},
        {"op": "delete"},
    ],
)
def test_an_authentic_request_without_sense_ends_only_its_own_connection(
    server: StoreServer, client: StoreClient, secret: bytes, header: dict[str, object]
) -> None:
    sock, session = authenticate(server, secret)
    with sock:
        values = (b"v",) if header.get("op") == "set" else ()
        sock.sendall(b"".join(FrameWriter(session.send_key).frame(encode(header, values))))
        assert was_thrown_out(sock)
    client.set("a", b"1")


def test_injected_bytes_end_the_connection(server: StoreServer, secret: bytes) -> None:
    sock, session = authenticate(server, secret)
    frame = bytearray(b"".join(FrameWriter(session.send_key).frame(encode({"op": "x"}))))
    frame[0] ^= 0x40
    with sock:
        sock.sendall(frame)
        assert was_thrown_out(sock)


def test_a_second_request_while_waiting_is_refused(server: StoreServer, secret: bytes) -> None:
    sock, session = authenticate(server, secret)
    writer = FrameWriter(session.send_key)
    request = {"op": "wait", "keys": ["a"], "stop_key": "", "timeout_s": 30}
    with sock:
        sock.sendall(b"".join(writer.frame(encode(request)) + writer.frame(encode(request))))
        assert was_thrown_out(sock)


def test_too_large_messages_are_refused_on_both_sides(no_leak: None, secret: bytes) -> None:
    with StoreServer(secret, max_message_bytes=1000) as server:
        with connect(server, secret) as client, pytest.raises(StartError, match="was lost"):
            client.set("a", b"x" * 1000)
        with StoreClient(server.address, server.port, secret, max_message_bytes=1000) as client:
            with pytest.raises(StartError, match="above the 1000"):
                client.set("a", b"x" * 1000)
            client.set("a", b"x" * 600)
            client.set("b", b"x" * 600)
            with pytest.raises(StartError, match="the answer would have"):
                client.wait_all(["a", "b"], 5.0)
            assert client.get("a", 5.0) == b"x" * 600


def test_a_waiter_that_leaves_is_forgotten(
    server: StoreServer, client: StoreClient, secret: bytes
) -> None:
    sock, session = authenticate(server, secret)
    request = {"op": "wait", "keys": ["a"], "stop_key": "", "timeout_s": 30}
    with sock:
        sock.sendall(b"".join(FrameWriter(session.send_key).frame(encode(request))))
    client.set("a", b"1")
    assert client.get("a", 5.0) == b"1"


def test_whoever_waits_for_years_disturbs_nobody(server: StoreServer, client: StoreClient) -> None:
    with ThreadPoolExecutor(2) as ranks:
        waiting = [ranks.submit(each.get, "a", 1e12) for each in (server, client)]
        server.set("b", b"1")
        assert server.get("b", 5.0) == b"1"
        server.set("a", b"2")
        assert [future.result(10) for future in waiting] == [b"2", b"2"]


def test_closing_the_store_ends_every_wait(no_leak: None, secret: bytes) -> None:
    server = StoreServer(secret)
    with connect(server, secret) as client, ThreadPoolExecutor(2) as ranks:
        waiting = [ranks.submit(client.get, "a", 60.0), ranks.submit(server.get, "b", 60.0)]
        server.close()
        for future in waiting:
            with pytest.raises(StartError, match=r"lost|closed|ended"):
                future.result()
    server.close()
    with pytest.raises(StartError, match="ended"):
        server.set("a", b"1")


def test_a_closed_client_says_so(server: StoreServer, secret: bytes) -> None:
    client = connect(server, secret)
    client.close()
    client.close()
    with pytest.raises(StartError, match="is closed"):
        client.try_get("a")


def test_descriptors_do_not_reach_child_processes(server: StoreServer, client: StoreClient) -> None:
    assert client.try_get("a") is None  # the server has accepted
    descriptors = _sockets_of(server.port)
    assert len(descriptors) == 3  # the one that listens, and both ends of the connection
    assert not [each for each in descriptors if os.get_inheritable(each)]


def _sockets_of(port: int) -> list[int]:
    """The descriptors with that port at either end: libraries of other tests keep sockets, too."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as same:
                is_own = same.getsockname()[1:2] == (port,)
                if is_own or same.getpeername()[1:2] == (port,):
                    found.append(int(name))
        except OSError:  # it is closed, or has no peer
            continue
    return found
