"""The handshake: pure on the server's side, over a socket pair on the client's."""

from __future__ import annotations

import hmac
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod._rendezvous import make_secret
from horovod._rendezvous.framing import FrameError, FrameReader, FrameWriter
from horovod._rendezvous.handshake import (
    HELLO_BYTES,
    MAC_BYTES,
    MAGIC,
    NONCE_BYTES,
    ClientHandshake,
    HandshakeError,
    Hello,
    ReplayStore,
    ServerHandshake,
    Session,
    greet,
    pack_hello,
)
from horovod._rendezvous.incarnation import Incarnation
from horovod._rendezvous.sockets import receive_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECRET = bytes(range(32))
HELLO = Hello("control", rank=3, to_rank=1, incarnation=Incarnation(7, 2))
NONCE = b"n" * NONCE_BYTES


def make_server(
    secret: bytes = SECRET,
    admits: Callable[[Hello], bool] = lambda hello: True,
    replay: ReplayStore | None = None,
) -> ServerHandshake:
    return ServerHandshake(secret, admits, replay or ReplayStore())


def feed(server: ServerHandshake, data: bytes) -> bytes:
    """Gives the server what it is ready to take, and returns all answers."""
    answers = b""
    while data:
        view = server.buffer()
        size = min(len(view), len(data))
        view[:size] = data[:size]
        answers += server.filled(size)
        data = data[size:]
    return answers


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    client, peer = socket.socketpair()
    with client, peer:
        yield client, peer


def serve(sock: socket.socket, server: ServerHandshake, tamper: int = -1) -> threading.Thread:
    """Runs the server's side on a thread; flips a bit of answer byte ``tamper``."""

    def run() -> None:
        sent = 0
        with sock:
            while server.session is None:
                data = sock.recv(len(server.buffer()))
                try:
                    answer = bytearray(feed(server, data)) if data else None
                except HandshakeError:
                    return
                if answer is None:
                    return
                if sent <= tamper < sent + len(answer):
                    answer[tamper - sent] ^= 1
                sent += len(answer)
                sock.sendall(answer)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def soon() -> float:
    return time.monotonic() + 30.0


def test_both_sides_agree_on_keys_and_the_server_learns_what_the_client_wants(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    server = make_server()
    thread = serve(pair[1], server)
    session = greet(pair[0], SECRET, HELLO, soon())
    thread.join()
    assert server.hello == HELLO
    assert server.session == Session(session.receive_key, session.send_key)
    assert session.send_key != session.receive_key


def test_keys_differ_between_connections_and_are_not_printed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    sessions = []
    for client, peer in (pair, socket.socketpair()):
        thread = serve(peer, make_server())
        with client:
            sessions.append(greet(client, SECRET, HELLO, soon()))
        thread.join()
    assert sessions[0].send_key != sessions[1].send_key
    assert repr(sessions[0]) == "Session()"


def test_a_client_with_another_secret_gets_no_answer(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    thread = serve(pair[1], make_server())
    with pytest.raises(ConnectionResetError):
        greet(pair[0], make_secret(), HELLO, soon())
    thread.join()


@pytest.mark.parametrize("tamper", [0, NONCE_BYTES, NONCE_BYTES + MAC_BYTES])
def test_a_changed_answer_is_refused_by_the_client(
    pair: tuple[socket.socket, socket.socket], tamper: int
) -> None:
    thread = serve(pair[1], make_server(), tamper)
    with pytest.raises(HandshakeError):
        greet(pair[0], SECRET, HELLO, soon())
    pair[0].close()
    thread.join()


def test_a_server_that_reflects_our_own_messages_is_refused(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    pair[1].settimeout(30)
    thread = threading.Thread(
        target=lambda: pair[1].sendall(receive_exactly(pair[1], HELLO_BYTES, soon()))
    )
    thread.start()
    with pytest.raises(HandshakeError):
        greet(pair[0], SECRET, HELLO, soon())
    thread.join()


def test_a_silent_server_costs_no_more_than_the_deadline(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        greet(pair[0], SECRET, HELLO, start + 0.05)
    assert time.monotonic() - start < 20.0


def test_a_dripping_server_does_not_move_the_deadline(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    stop = threading.Event()

    def drip() -> None:
        while not stop.wait(0.01):
            pair[1].send(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        greet(pair[0], SECRET, HELLO, start + 0.1)
    stop.set()
    thread.join()
    assert time.monotonic() - start < 20.0


@given(position=st.integers(0, HELLO_BYTES - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_of_the_hello_is_refused(position: int, bit: int) -> None:
    message = bytearray(pack_hello(SECRET, HELLO, NONCE))
    message[position] ^= 1 << bit
    with pytest.raises(HandshakeError):
        feed(make_server(), bytes(message))


def make_proof(hello: bytes, answer: bytes) -> bytes:
    return hmac.digest(SECRET, b"client\0" + hello + answer[:NONCE_BYTES], "sha256")


def test_the_right_proof_opens_a_session() -> None:
    server = make_server()
    message = pack_hello(SECRET, HELLO, NONCE)
    proof = make_proof(message, feed(server, message))
    assert len(feed(server, proof)) == MAC_BYTES
    assert server.session is not None


@given(position=st.integers(0, MAC_BYTES - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_of_the_proof_is_refused(position: int, bit: int) -> None:
    server = make_server()
    message = pack_hello(SECRET, HELLO, NONCE)
    proof = bytearray(make_proof(message, feed(server, message)))
    proof[position] ^= 1 << bit
    with pytest.raises(HandshakeError):
        feed(server, bytes(proof))
    assert server.session is None


def test_the_proof_of_another_connection_is_refused() -> None:
    message = pack_hello(SECRET, HELLO, NONCE)
    recorded = make_proof(message, feed(make_server(), message))
    server = make_server()
    feed(server, message)
    with pytest.raises(HandshakeError):
        feed(server, recorded)


@given(st.binary(min_size=HELLO_BYTES, max_size=2 * HELLO_BYTES))
def test_garbage_is_refused_without_an_answer(garbage: bytes) -> None:
    server = make_server()
    with pytest.raises(HandshakeError):
        feed(server, garbage)
    assert server.session is None
    assert server.hello is None


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"SSH-2.0", b"\0", b"horovod\x02"]
)
def test_a_stranger_is_recognized_by_his_first_bytes(start: bytes) -> None:
    with pytest.raises(HandshakeError):
        feed(make_server(), start)


def test_a_truncated_hello_gets_no_answer() -> None:
    server = make_server()
    assert feed(server, pack_hello(SECRET, HELLO, NONCE)[:-1]) == b""
    assert server.hello is None


def test_the_server_never_reads_past_its_step() -> None:
    server = make_server()
    assert len(server.buffer()) == HELLO_BYTES
    feed(server, MAGIC)
    assert len(server.buffer()) == HELLO_BYTES - len(MAGIC)


def test_a_repeated_hello_is_refused_by_the_listener_that_saw_it() -> None:
    replay = ReplayStore()
    message = pack_hello(SECRET, HELLO, NONCE)
    assert feed(make_server(replay=replay), message)
    with pytest.raises(HandshakeError, match="repeated"):
        feed(make_server(replay=replay), message)


def test_a_hello_meant_for_something_else_is_refused() -> None:
    server = make_server(admits=lambda hello: hello.purpose == "data")
    with pytest.raises(HandshakeError, match="unexpected"):
        feed(server, pack_hello(SECRET, HELLO, NONCE))


def test_an_unknown_purpose_is_refused_even_with_the_secret() -> None:
    with pytest.raises(HandshakeError):
        feed(make_server(), pack_hello(SECRET, Hello("backdoor"), NONCE))


def test_the_replay_store_is_bounded_and_forgets_the_oldest() -> None:
    replay = ReplayStore(capacity=2)
    assert [replay.add(nonce) for nonce in (b"a", b"b", b"a", b"c")] == [True, True, False, True]
    assert [replay.add(nonce) for nonce in (b"c", b"b", b"a")] == [False, False, True]


# -- roles, versions and directions that are mixed up


def test_the_proof_of_a_server_is_none_of_a_client() -> None:
    server = make_server()
    answer = feed(server, pack_hello(SECRET, HELLO, NONCE))
    with pytest.raises(HandshakeError):
        feed(server, answer[NONCE_BYTES:])
    assert server.session is None


def test_a_server_cannot_welcome_with_its_first_proof() -> None:
    client = ClientHandshake(SECRET, HELLO)
    answer = feed(make_server(), client.opening)
    feed_client(client, answer)
    with pytest.raises(HandshakeError):
        feed_client(client, answer[NONCE_BYTES:])
    assert client.session is None


def feed_client(client: ClientHandshake, data: bytes) -> bytes:
    client.buffer()[:] = data
    return client.filled(len(data))


def test_two_clients_that_were_joined_do_not_take_each_other_for_servers() -> None:
    one, other = ClientHandshake(SECRET, HELLO), ClientHandshake(SECRET, HELLO)
    for client, peer in ((one, other), (other, one)):
        with pytest.raises(HandshakeError):
            feed_client(client, peer.opening[: NONCE_BYTES + MAC_BYTES])


def test_an_attacker_who_relays_cannot_change_what_the_connection_is_for() -> None:
    """The hello of one connection with the proof of another to the same server."""
    client = ClientHandshake(SECRET, Hello("control", rank=2, to_rank=1))
    server = make_server()
    answer = feed(server, pack_hello(SECRET, Hello("data", rank=2, to_rank=1), NONCE))
    with pytest.raises(HandshakeError):  # the answer covers the other hello
        feed_client(client, answer)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_nobody_talks_a_server_into_another_version(version: int) -> None:
    """Not even who knows the secret: there is no other version that is weaker."""
    opening = bytearray(pack_hello(SECRET, HELLO, NONCE)[:-MAC_BYTES])
    opening[len(MAGIC) - 1] = version
    mac = hmac.digest(SECRET, b"hello\0" + bytes(opening), "sha256")
    with pytest.raises(HandshakeError):
        feed(make_server(), bytes(opening) + mac)


def test_a_frame_that_comes_back_to_its_sender_is_refused() -> None:
    client, server = ClientHandshake(SECRET, HELLO), make_server()
    proof = feed_client(client, feed(server, client.opening))
    feed_client(client, feed(server, proof))
    assert client.session is not None
    frame = b"".join(FrameWriter(client.session.send_key).frame([b"pay"]))
    reader = FrameReader(client.session.receive_key)
    reader.buffer()[:] = frame[: len(reader.buffer())]
    with pytest.raises(FrameError):
        reader.filled(len(reader.buffer()))
