"""Strangers who knock at a listener, and how to see that they were thrown out."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress

from horovod._rendezvous.handshake import Hello, pack_hello

GARBAGE = {
    "http": b"GET /global/rank HTTP/1.1\r\nHost: x\r\n\r\n" * 10,
    "tls": b"\x16\x03\x01\x02\x00\x01\x00" + b"\0" * 512,
    "random": secrets.token_bytes(4096),
    "zeros": b"\0" * 100_000,
    "wrong secret": pack_hello(b"w" * 32, Hello("store"), b"n" * 32),
    "version": b"horovod\x02" + b"\0" * 88,
}


def knock(address: str, port: int) -> socket.socket:
    return socket.create_connection((address, port), timeout=30)


def was_thrown_out(sock: socket.socket) -> bool:
    """Waits (at most the socket's timeout) for the end; False if even one byte came back."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def send_all(sock: socket.socket, data: bytes) -> None:
    """Sends as far as the other end lets us."""
    with suppress(ConnectionError):
        sock.sendall(data)
