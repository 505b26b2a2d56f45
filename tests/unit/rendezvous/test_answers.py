"""What the store tells those who wait for many keys, which they share."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest
from crowd import value_of

from horovod._rendezvous import answers, messages
from horovod._rendezvous.answers import Answers, found_in

if TYPE_CHECKING:
    from horovod._rendezvous.table import Found

RANKS = 20


def found(value: bytes = b"v", size: int = RANKS) -> Found:
    return {f"rank/{rank}": value + str(rank).encode() for rank in range(size)}


def read(parts: list[bytes]) -> Found:
    return found_in(*messages.decode(memoryview(b"".join(parts))))


def test_those_who_are_told_the_same_share_its_bytes() -> None:
    encoder = Answers()
    (first,), (second,) = encoder.encode(found()), encoder.encode(found())
    assert first is second
    assert read([first]) == found()


def test_what_ranks_tell_of_themselves_takes_less_than_a_fifth_of_its_bytes() -> None:
    texts = {f"rank/{rank}": value_of(rank, 1000) for rank in range(1000)}
    plain = sum(map(len, messages.encode({"keys": list(texts)}, list(texts.values()))))
    (body,) = Answers().encode(texts)
    assert len(body) < plain / 5
    assert read([body]) == texts


@pytest.mark.parametrize(
    "other",
    [
        found(b"new"),
        found(size=RANKS + 1),
        dict(reversed(found().items())),
        found(size=2),
        {"rank/0": b"v0"},
        {},
    ],
)
def test_what_differs_is_told_as_it_is(other: Found) -> None:
    encoder = Answers()
    encoder.encode(found())
    assert list(read(encoder.encode(other)).items()) == list(other.items())
    assert read(encoder.encode(found())) == found()


def test_what_is_very_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_MOST_SHARED_BYTES", 10)
    parts = Answers().encode(found())
    assert len(parts) > RANKS
    assert read(parts) == found()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"no zlib", "cannot be decompressed"),
        (zlib.compress(b"x" * 1000)[:-1], "cut short"),
        (zlib.compress(b"no message"), "header"),
        (zlib.compress(b"".join(messages.encode({"keys": ["a", "b"]}, [b"1"]))), "for each key"),
        (zlib.compress(b"".join(messages.encode({"keys": [1]}, [b"1"]))), "not a text"),
    ],
)
def test_a_compressed_answer_that_makes_no_sense_is_refused(value: bytes, says: str) -> None:
    with pytest.raises(messages.MessageError, match=says):
        found_in({"compressed": True}, [value])


def test_a_short_answer_that_decompresses_to_very_much_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "GIB", 1000)
    with pytest.raises(messages.MessageError, match="too long"):
        found_in({"compressed": True}, [zlib.compress(bytes(10_000))])
