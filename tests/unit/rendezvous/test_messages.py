"""The store's messages: decoding never fails in another way than MessageError."""

from __future__ import annotations

import json
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod._rendezvous.messages import (
    MAX_TIMEOUT_S,
    MessageError,
    check_key,
    check_timeout,
    decode,
    encode,
)


def with_header(header: object, rest: bytes = b"") -> memoryview:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return memoryview(struct.pack(">I", len(text)) + text + rest)


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.lists(st.binary(), max_size=4))
def test_messages_survive_the_round_trip(header: dict[str, object], values: list[bytes]) -> None:
    header.pop("sizes", None)
    got_header, got_values = decode(memoryview(b"".join(encode(header, values))))
    assert got_header == {**header, "sizes": [len(value) for value in values]}
    assert got_values == values


@given(st.binary(max_size=200))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(MessageError):
        decode(memoryview(garbage))


@pytest.mark.parametrize(
    "body",
    [
        with_header([]),
        with_header({}),
        with_header({"sizes": 3}),
        with_header({"sizes": [1]}),
        with_header({"sizes": [-1, 1]}),
        with_header({"sizes": [True]}, b"x"),
        with_header({"sizes": [1.0]}, b"x"),
        with_header({"sizes": []}, b"left over"),
        with_header(b'{"sizes": [], "x": NaN}'),
        with_header(b"[" * 100_000),
        with_header(b"\xff"),
        memoryview(struct.pack(">I", 2**31) + b"{}"),
    ],
)
def test_malformed_messages_are_refused(body: memoryview) -> None:
    with pytest.raises(MessageError):
        decode(body)


@pytest.mark.parametrize("key", ["", "x" * 1025, None, 1, b"bytes"])
def test_keys_are_short_texts(key: object) -> None:
    with pytest.raises(MessageError):
        check_key(key)


@pytest.mark.parametrize("timeout_s", [-1, math.inf, math.nan, "1", None, True])
def test_timeouts_are_finite(timeout_s: object) -> None:
    with pytest.raises(MessageError):
        check_timeout(timeout_s)


def test_a_huge_timeout_is_cut() -> None:
    assert check_timeout(10**400) == MAX_TIMEOUT_S
