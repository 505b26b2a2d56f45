"""Prefixes and tails: what they show, and that the work grows with the bytes only."""

from __future__ import annotations

import re
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.runner.output import lines
from horovod.runner.output.lines import LinePrefixer, Tail

if TYPE_CHECKING:
    from types import FrameType

MIB = 1024 * 1024


def prefixed(*chunks: bytes, prefix: str = ">") -> str:
    prefixer = LinePrefixer(prefix.encode)
    return b"".join([*map(prefixer.feed, chunks), prefixer.finish()]).decode()


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ([b"a\nb\n"], ">a\n>b\n"),
        ([b"a", b"b\nc", b"\n"], ">ab\n>c\n"),
        ([b"no end"], ">no end\n"),
        ([b"\n\n"], ">\n>\n"),
        ([b"10%\r20%\r", b"done\n"], ">10%\r>20%\r>done\n"),
        ([b"dos\r\nline\r", b"\nend\r", b"x\n"], ">dos\r\n>line\r\n>end\r>x\n"),
        (["é€".encode()[:1], "é€".encode()[1:3], "é€".encode()[3:] + b"\n"], ">é€\n"),
        ([b"bad \xff byte\n"], ">bad � byte\n"),
        ([b"cut \xe2\x82"], ">cut �\n"),
        ([], ""),
    ],
)
def test_prefixes(chunks: list[bytes], text: str) -> None:
    assert prefixed(*chunks) == text


def test_a_line_appears_as_soon_as_it_is_complete() -> None:
    prefixer = LinePrefixer(lambda: b">")
    assert prefixer.feed(b"a\nb") == b">a\n"
    assert prefixer.feed(b"\rc") == b">b\r"
    assert prefixer.finish() == b">c\n"
    assert prefixer.finish() == b""


def test_a_line_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 4)
    assert prefixed(b"1234\n") == ">1234\n"
    assert prefixed(b"123456", b"78\n") == ">1234\n>5678\n"
    assert prefixed("123é".encode()) == ">123\n>é\n"


# -- against a simple reference, for any bytes in any pieces

# Mostly what means something; the rest are bytes of characters, whole and broken.
BYTES = st.lists(
    st.sampled_from([b"a", b"\r", b"\n", b"\r\n", "é".encode(), "😀".encode(), b"\xe2", b"\x82"]),
    max_size=40,
).map(b"".join)
STREAMS = BYTES | st.binary(max_size=60)


@st.composite
def cut_streams(draw: st.DrawFn) -> list[bytes]:
    data = draw(STREAMS)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def reference(data: bytes, max_bytes: int) -> str:
    """One line after the other, each character looked at by itself."""
    shown = ""
    for content, end in re.findall(rb"([^\r\n]*)(\r\n|\r|\n|$)", data):
        rest = content
        while len(rest) > max_bytes:
            cut = next(
                (at for at in range(max_bytes, max_bytes - 4, -1) if not 0x80 <= rest[at] < 0xC0),
                max_bytes,
            )
            shown += f">{rest[:cut].decode(errors='replace')}\n"
            rest = rest[cut:]
        if rest or end:
            shown += f">{rest.decode(errors='replace')}{end.decode() or chr(10)}"
    return shown


@given(cut_streams(), st.sampled_from([4, 5, 7, 1000]))
def test_any_bytes_in_any_pieces_are_as_in_the_reference(pieces: list[bytes], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "MAX_LINE_BYTES", most)
        assert prefixed(*pieces) == reference(b"".join(pieces), most)


@given(cut_streams())
def test_the_tail_of_any_bytes_in_any_pieces(pieces: list[bytes]) -> None:
    tail = Tail()
    for piece in pieces:
        tail.feed(piece)
    whole = b"".join(pieces).decode(errors="replace").split("\n")[-lines.TAIL_LINES :]
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in whole]
    while shown and not shown[-1].strip():
        shown.pop()
    assert list(tail.lines()) == shown


def test_tail_shows_the_last_lines_as_a_terminal_does() -> None:
    tail = Tail()
    tail.feed(b"".join(b"line %d\n" % number for number in range(30)))
    tail.feed(b"10%\r99%\r\nlast \xff" + b"x" * 600)
    shown = tail.lines()
    assert len(shown) == 20
    assert shown[-2] == "99%"
    assert shown[-1].startswith("last �x")
    assert len(shown[-1]) == 500


# -- work and memory


class Work:
    """Counts the bytes that methods of bytes and bytearray go through."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def _count(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            self_ = getattr(function, "__self__", None)
            self.num_bytes += len(self_) if isinstance(self_, bytes | bytearray) else 0

    def __enter__(self) -> Work:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)


def test_work_is_counted() -> None:
    """A test of the test."""
    data = bytes(1000)
    with Work() as work:
        data.find(b"x")
        bytearray(data).rfind(b"x")
    assert 2000 <= work.num_bytes <= 2100


PIECES = {
    "no end": bytes(65536),
    "lines": b"0123456789abcde\n" * 4096,
    "empty lines": b"\n" * 65536,
    "binary": bytes(range(256)) * 256,
    "returns": b"\r" * 65536,
    "progress bars": b"\r 50 % |#####     |" * 3400,
    "returns and lines": b"\r\n" * 32768,
    "halves of characters": "€".encode()[:2] * 32768,
}


@pytest.mark.parametrize("shape", PIECES)
def test_work_and_memory_grow_with_the_bytes_only(shape: str) -> None:
    """Whoever looks twice at what is held back would not come to the end of a line of 100 MB."""
    piece = PIECES[shape]
    count = 1600 if shape in ("no end", "lines") else 200
    tracemalloc.start(1)
    try:
        work = _work(piece, count)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert work <= 40 * count * len(piece)
    assert peak < 8 * MIB


@pytest.mark.parametrize("piece", [b".", b"0123456789", b"\r"])
def test_the_work_for_small_pieces_grows_with_them_only(piece: bytes) -> None:
    few, many = _work(piece, 3000), _work(piece, 30000)
    assert many <= 11 * few
    assert many <= 30000 * 4000


def _work(piece: bytes, count: int) -> int:
    """How many bytes are looked at while a piece comes that many times."""
    prefixer, tail = LinePrefixer(lambda: b"[0]<stdout>:"), Tail()
    with Work() as work:
        for _ in range(count):
            prefixer.feed(piece)
            tail.feed(piece)
    return work.num_bytes


def test_the_beginning_of_a_line_comes_when_it_is_asked_for() -> None:
    prefixer = LinePrefixer(lambda: b"> ")
    assert prefixer.begin() == b""
    assert prefixer.feed(b"one\n(Pdb) ") == b"> one\n"
    assert prefixer.begin() == b"> (Pdb) "
    assert prefixer.begin() == b""
    assert prefixer.feed(b"42\n(Pdb) ") == b"42\n"
    assert prefixer.begin() == b"> (Pdb) "
    prefixer.break_off()
    assert prefixer.feed(b"43\n") == b"> 43\n"
    prefixer.feed(b"(Pdb) ")
    prefixer.begin()
    assert prefixer.finish() == b"\n"
    assert prefixer.finish() == b""


def test_a_character_is_not_cut_when_a_line_begins() -> None:
    prefixer = LinePrefixer(lambda: b"> ")
    text = "€".encode()
    prefixer.feed(b"a" + text[:2])
    assert prefixer.begin() == b"> a"
    assert prefixer.begin() == b""
    prefixer.feed(text[2:] + b"?")
    assert prefixer.begin() == text + b"?"
    prefixer.feed(b"\x80\x80\x80")
    assert prefixer.begin() == "\ufffd\ufffd\ufffd".encode()
