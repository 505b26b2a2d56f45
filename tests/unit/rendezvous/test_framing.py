"""Frames: whatever is changed, cut, repeated, reordered or injected is refused."""

from __future__ import annotations

import socket
import struct
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod._rendezvous.framing import (
    HEAD_BYTES,
    Channel,
    FrameError,
    FrameReader,
    FrameWriter,
)
from horovod._rendezvous.handshake import MAC_BYTES, Session

KEY = b"k" * 32


def read(data: bytes, reader: FrameReader | None = None) -> list[bytes]:
    """Feeds a stream to a reader and returns the complete messages."""
    reader = reader or FrameReader(KEY)
    messages = []
    while data:
        view = reader.buffer()
        size = min(len(view), len(data))
        view[:size] = data[:size]
        data = data[size:]
        body = reader.filled(size)
        if body is not None:
            messages.append(bytes(body))
    return messages


@given(st.lists(st.lists(st.binary(max_size=300), max_size=3), max_size=4))
def test_messages_arrive_as_they_were_sent(messages: list[list[bytes]]) -> None:
    writer = FrameWriter(KEY)
    stream = b"".join(b"".join(writer.frame(parts)) for parts in messages)
    assert read(stream) == [b"".join(parts) for parts in messages]


@given(st.binary(max_size=100), st.data())
def test_any_changed_byte_is_refused(body: bytes, data: st.DataObject) -> None:
    frame = bytearray(b"".join(FrameWriter(KEY).frame([body])))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameError):
        read(bytes(frame))


@given(st.binary(max_size=100), st.data())
def test_a_truncated_frame_is_never_a_message(body: bytes, data: st.DataObject) -> None:
    frame = b"".join(FrameWriter(KEY).frame([body]))
    assert read(frame[: data.draw(st.integers(0, len(frame) - 1))]) == []


def test_a_repeated_frame_is_refused() -> None:
    frame = b"".join(FrameWriter(KEY).frame([b"pay"]))
    reader = FrameReader(KEY)
    assert read(frame, reader) == [b"pay"]
    with pytest.raises(FrameError):
        read(frame, reader)


def test_reordered_frames_are_refused() -> None:
    writer = FrameWriter(KEY)
    first, second = (b"".join(writer.frame([body])) for body in (b"1", b"2"))
    with pytest.raises(FrameError):
        read(second + first)


def test_the_body_of_another_frame_is_refused() -> None:
    writer = FrameWriter(KEY)
    first, second = (b"".join(writer.frame([body])) for body in (b"1", b"2"))
    with pytest.raises(FrameError):
        read(first[:HEAD_BYTES] + second[HEAD_BYTES:])


def test_an_injected_frame_with_another_key_is_refused() -> None:
    with pytest.raises(FrameError):
        read(b"".join(FrameWriter(b"x" * 32).frame([b"evil"])))


def test_a_forged_length_is_refused_before_memory_is_reserved() -> None:
    reader = FrameReader(KEY)
    with pytest.raises(FrameError, match="changed"):
        read(struct.pack(">Q", 2**62) + b"\0" * MAC_BYTES, reader)


@pytest.mark.parametrize(("size", "accepted"), [(64, True), (65, False)])
def test_the_limit_holds_for_authentic_messages_too(size: int, accepted: bool) -> None:
    frame = b"".join(FrameWriter(KEY).frame([b"x" * size]))
    reader = FrameReader(KEY, limit_bytes=64)
    if accepted:
        assert read(frame, reader) == [b"x" * 64]
    else:
        with pytest.raises(FrameError, match="65 bytes is above 64"):
            read(frame[:HEAD_BYTES], reader)


def test_channels_carry_messages_both_ways() -> None:
    left, right = socket.socketpair()
    with left, right:
        here = Channel(left, Session(b"a" * 32, b"b" * 32))
        there = Channel(right, Session(b"b" * 32, b"a" * 32))
        deadline = time.monotonic() + 30
        here.send([b"to ", b"there"], deadline)
        assert there.receive(deadline) == b"to there"
        large = b"x" * 1_000_000
        sending = threading.Thread(target=there.send, args=([large], deadline))
        sending.start()
        assert here.receive(deadline) == large
        sending.join()


def test_a_channel_tells_end_and_deadline() -> None:
    left, right = socket.socketpair()
    channel = Channel(left, Session(KEY, KEY))
    with left:
        with pytest.raises(TimeoutError):
            channel.receive(time.monotonic() + 0.02)
        right.close()
        with pytest.raises(ConnectionError):
            channel.receive(time.monotonic() + 30)
