from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.runner.protocol.frames import (
    Decoder,
    Frame,
    FrameError,
    Kind,
    Reached,
    Stop,
    encode,
    number_of,
)

FRAMES = st.builds(Frame, st.sampled_from(Kind), st.integers(-1, 9999), st.binary(max_size=50))


@given(st.lists(FRAMES, max_size=8), st.integers(1, 30))
def test_frames_survive_any_cut(frames: list[Frame], step: int) -> None:
    data = b"".join(encode(frame.kind, frame.worker, frame.payload) for frame in frames)
    decoder = Decoder()
    received = []
    for start in range(0, len(data), step):
        received += decoder.feed(data[start : start + step])
    assert received == frames


@pytest.mark.parametrize("data", [b"Welcome to this host!", encode(Kind.STDOUT)[:5] + b"\xff" * 4])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        list(Decoder().feed(data))


def test_how_to_stop_survives_the_way() -> None:
    for how in (Stop(), Stop(2, 0.1), Stop(15, 1e6)):
        assert Stop.from_bytes(how.to_bytes()) == how


@pytest.mark.parametrize("payload", [b"", b"2", b"x 1", b"2 x", b"999 1"])
def test_what_is_no_way_to_stop(payload: bytes) -> None:
    with pytest.raises(FrameError, match="not how to stop"):
        Stop.from_bytes(payload)


@pytest.mark.parametrize("payload", [b"", b"x", b"1" * 5000, b"-1", b"4294967296", b"1.5"])
def test_what_is_no_number_of_an_agent_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError, match="not a number"):
        number_of(payload, 0)


def test_what_an_agent_has_reached_survives_the_way() -> None:
    for reached in (Reached(0, "10.0.0.7", 40123), Reached(3, "fe80::1%eth0", 0)):
        assert Reached.from_bytes(reached.to_bytes()) == reached


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"0",
        b"0 10.0.0.7",
        b"-1 a 1",
        b"0 a 65536",
        b"0 a 1 2",
        b"0  1 x",
        b"0 \x7f 1",
        b"\xff",
    ],
)
def test_what_no_agent_can_have_reached_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError, match="not an endpoint that was reached"):
        Reached.from_bytes(payload)
